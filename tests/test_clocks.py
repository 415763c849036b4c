"""Nothing depends on the time of day, which may be set in the middle of a study: it is only ever told to people."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "stream_server"
TIME_OF_DAY = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("date", "today"),
}
# Each puts it into words for people, into a name, or into a question about days.
MAY_TELL_IT = {
    "analysis/timeline.py": "until when an attempt ran, in what the page in the browser shows",
    "analysis/run_status.py": "how old a checkpoint is, in what stream-study shows",
    "analysis/simulations.py": "for how long an attempt runs, in what stream-study shows",
    "dashboard/page.py": "when the page was brought up to date, in its title line",
    "dashboard/watch.py": "until when what goes on has lasted, in what the page shows",
    "launcher/backends/oar.py": "how many days of jobs that have ended OAR is asked for",
    "machine/study_lock.py": "since when a study is run, in what a second start is told",
    "server/checkpoint/continuation.py": "when a study was started, in its report",
    "server/checkpoint/capture.py": "when a checkpoint was written, in its manifest",
    "server/model/best_models.py": "when a model was written, in its facts",
    "server/metrics/tensorboard_writer.py": "what TensorBoard shows, and the name of its file",
    "server/steering/suggester.py": "when parameters were proposed, in parameters.csv",
    "server/study/status.py": "when the last checkpoint was committed, in what Prometheus is told",
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
    assert found == set(MAY_TELL_IT)
