"""Bugs that the sweeps have found, each at its place."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from stream_server.errors import DamagedCheckpoint
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.journal.records import decode
from stream_server.machine.run_folder import JOURNAL_FILE
from stream_server.messages.launcher_link import Attached
from stream_server.server.model.model_export import MODEL_FILE, export_model
from stream_server.server.model.warm_start import find_source
from stream_server.server.run.output import OutputFolder
from stream_server.server.user.normalization import Normalization
from stream_server.storage.tensor_file import read_tensors
from tests.faults.sweep.calls.programs.output import CONFIG
from tests.faults.sweep.records import recorder
from tests.support.failing_disk import failing, in_turn


def write(journal: Journal, number: int) -> None:
    journal.write(Attached(token=1, simulation=number, attempt=0))


def test_a_start_that_was_killed_while_it_wrote_study_json_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    (tmp_path / "study.json.0123456789ab.tmp").write_text('{"study": ')
    OutputFolder(tmp_path).prepare(CONFIG, resume=False)
    assert {path.name for path in tmp_path.iterdir()} == {"journal.jsonl", "study.json"}


def test_a_record_that_could_neither_be_synced_nor_taken_back_is_gone_before_the_next_one(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        write(journal, 1)
        with failing(in_turn("fsync", "truncate")), pytest.raises(OSError, match="Input/output"):
            write(journal, 2)
        write(journal, 3)
        with failing(in_turn("fsync")), pytest.raises(OSError, match="Input/output"):
            write(journal, 4)
    found = list(decode((tmp_path / JOURNAL_FILE).read_bytes()))
    assert found == [Attached(token=1, simulation=number, attempt=0) for number in (1, 3)]


def test_a_recording_whose_file_cannot_be_closed_ends_and_the_study_goes_on(tmp_path: Path) -> None:
    opened = recorder(tmp_path, [(2, 1), (2, 2)], incarnation=1, position=0)
    with ExitStack() as stack, opened:
        opened.append([0, 1])
        stack.enter_context(failing(in_turn("close")))
    assert opened.error is not None
    assert "Input/output" in opened.marker.read_text()


@pytest.mark.parametrize("calls", [["rename"], ["+rename", "fsync"], ["+rename", "rename"]])
def test_a_model_that_cannot_be_replaced_stays(tmp_path: Path, calls: list[str]) -> None:
    export(tmp_path, 1)
    with failing(in_turn(*calls)), pytest.raises(OSError, match="Input/output"):
        export(tmp_path, 2)
    assert read_tensors(tmp_path / "model" / MODEL_FILE, as_torch=False)["w"] == 1


def test_a_model_that_was_put_aside_by_an_export_that_was_killed_is_not_lost(tmp_path: Path) -> None:
    export(tmp_path, 1)
    (tmp_path / "model").rename(tmp_path / "model.old")
    with failing(in_turn("mkdir")), pytest.raises(OSError, match="Input/output"):
        export(tmp_path, 2)
    assert read_tensors(tmp_path / "model" / MODEL_FILE, as_torch=False)["w"] == 1


def test_a_study_does_not_start_from_a_model_of_which_a_bit_is_another(tmp_path: Path) -> None:
    export(tmp_path, 1)
    path = tmp_path / "model" / MODEL_FILE
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedCheckpoint, match="does not match"):
        find_source(tmp_path / "model")


def export(folder: Path, number: int) -> None:
    tensors = {"w": np.array([number])}
    export_model(folder / "model", tensors, owner="S", config=CONFIG, normalization=Normalization.of(CONFIG))
