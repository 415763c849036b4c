"""The folder of a new study is on disk before anything is promised of what is in it."""

from pathlib import Path

from stream_server.server.run.output import OutputFolder
from tests.faults.disk.recording import recorded
from tests.faults.disk.states import Moment
from tests.support.studies import StudyFolder


def test_the_folder_of_a_new_study_is_on_disk(tmp_path: Path) -> None:
    config = StudyFolder(tmp_path / "heat").load({"study.output_dir": str(tmp_path / "disk" / "runs" / "one")})
    (tmp_path / "disk").mkdir()
    with recorded(tmp_path / "disk", {}) as history:
        OutputFolder(config.output_dir).prepare(config, resume=False)
    tree = Moment(history, len(history.steps)).synced().tree
    assert set(tree["runs"]["one"]) == {"study.json"}  # type: ignore[arg-type,call-overload,index]
