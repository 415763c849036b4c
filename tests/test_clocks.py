"""No duration and no deadline depends on the time of day, which may be set: that is only ever told to people."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "stream_server"
TIME_OF_DAY = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
# In these it is written down for people.
MAY_TELL_IT = {
    "analysis/attempts.py",
    "analysis/run_state.py",
    "dashboard/page.py",
    "dashboard/watch.py",
    "failpoints.py",
    "machine/study_lock.py",
    "server/checkpoint/continuation.py",
    "server/checkpoint/capture.py",
    "server/model/best_models.py",
    "server/metrics/tensorboard_writer.py",
    "server/study/prometheus.py",
}


def tells_the_time_of_day(file: Path) -> bool:
    tree = ast.parse(file.read_text())
    names = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    imported = {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return bool((names | imported) & TIME_OF_DAY)


def test_only_what_is_told_to_people_has_the_time_of_day() -> None:
    found = {file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py") if tells_the_time_of_day(file)}
    assert found == MAY_TELL_IT
