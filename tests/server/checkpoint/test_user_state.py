"""A user's own state: plain, or any Python object if the study allows it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_server.errors import ConfigError, DamagedCheckpoint, UserCodeError
from stream_server.server.checkpoint.user_state import (
    freeze_user_state,
    learned_files,
    load_rank_states,
    load_user_state,
    rank_files,
    thaw_user_state,
    user_file,
)
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.framework import framework_of
from stream_server.server.user.stream_server import StreamServer
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.checksums import ChecksumFile
from stream_server.storage.plain_state import from_bytes, write_state
from tests.fakes.thread_ranks import on_ranks

NUMPY = framework_of(StreamServer)


class Odd:
    """A type that checkpoints do not know."""

    def __init__(self, value: int) -> None:
        self.value = value


class Heat(StreamServer):
    """A server whose state is what `kept` says."""

    def __init__(self, kept: Any = None) -> None:
        self.kept = kept

    def state_dict(self) -> dict[str, Any]:
        if isinstance(self.kept, Exception):
            raise self.kept
        return self.kept  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(self.kept, Exception):
            raise self.kept
        self.kept = state


class Counting(StreamServer):
    """A server on a rank of several, with a state of that rank."""

    def __init__(self, rank: int, num_ranks: int, kept: Any = None) -> None:
        super().__init__()
        self.hold_attributes(rank=rank, num_ranks=num_ranks)
        self.kept = kept
        self.given: Any = None

    def rank_state_dict(self) -> dict[str, Any]:
        if isinstance(self.kept, str):
            return {"mean": self.all_reduce(np.ones(2))}
        return {"kept": self.kept}

    def load_rank_state_dict(self, states: dict[int, dict[str, Any]]) -> None:
        self.given = {rank: state["kept"] for rank, state in states.items()}


def saved_ranks(folder: Path, *kept: Any, allow_pickle: bool = False) -> None:
    for rank, value in enumerate(kept):
        [part] = rank_files(Counting(rank, len(kept), value), allow_pickle=allow_pickle)
        (folder / part.path).parent.mkdir()
        with ChecksumFile(folder / part.path) as file:
            part.write(file)
            file.close()


def restored_on(folder: Path, num_saved: int, num_ranks: int, *, allow_pickle: bool = False) -> list[Any]:
    """What each of so many ranks is given."""
    servers = [Counting(rank, num_ranks) for rank in range(num_ranks)]
    for server in servers:
        load_rank_states(folder, num_saved, server, allow_pickle=allow_pickle)
    return [server.given for server in servers]


def saved(folder: Path, server: StreamServer, *, allow_pickle: bool = False) -> None:
    part = user_file(server, allow_pickle=allow_pickle)
    (folder / part.path).parent.mkdir()
    with ChecksumFile(folder / part.path) as file:
        part.write(file)
        file.close()


def test_a_state_that_waits_for_the_other_ranks_is_refused_on_rank_0_instead_of_waiting_for_ever() -> None:
    class Averaging(TorchServer):
        def state_dict(self) -> dict[str, Any]:
            return {"mean": self.all_reduce(np.ones(2))}

    def save(ranks: Ranks) -> str:
        server = Averaging()
        server.union_mean = UnionMean(ranks)
        assert server.all_reduce(np.ones(2)).tolist() == [1, 1]
        if ranks.rank == 0:
            step: Any = SimpleNamespace(state_dict=dict)
            with pytest.raises(UserCodeError, match=r"all_reduce .* runs on rank 0 alone"):
                learned_files(server, step, Callbacks(server), allow_pickle=False)
        return str(server.all_reduce(np.ones(2)))

    assert len(set(on_ranks(2, save))) == 1


def test_plain_state_comes_back(tmp_path: Path) -> None:
    saved(tmp_path, Heat({"step": 3, "mean": np.arange(3.0)}))
    load_user_state(tmp_path, server := Heat(), allow_pickle=False)
    assert server.kept["step"] == 3
    assert server.kept["mean"].tolist() == [0, 1, 2]


def test_what_the_user_changes_later_is_not_saved() -> None:
    mean = np.zeros(3)
    state = freeze_user_state({"mean": mean}, NUMPY, owner="Heat", allow_pickle=False)
    mean += 1
    data = bytearray()
    state.write(type("Sink", (), {"write": lambda _, more: data.extend(more)})())
    assert thaw_user_state(from_bytes(bytes(data)), NUMPY, owner="Heat", allow_pickle=False)["mean"].tolist() == [
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_a_state_without_return_is_refused(allow_pickle: bool) -> None:
    with pytest.raises(
        UserCodeError, match=r"^Heat\.state_dict\(\) returned None: return the state that a restart needs"
    ):
        freeze_user_state(None, NUMPY, owner="Heat", allow_pickle=allow_pickle)


def test_each_rank_is_given_its_own_state_and_other_numbers_of_ranks_those_of_all(tmp_path: Path) -> None:
    saved_ranks(tmp_path, 5, 7)
    assert restored_on(tmp_path, 2, 2) == [{0: 5}, {1: 7}]
    assert restored_on(tmp_path, 2, 1) == [{0: 5, 1: 7}]
    assert restored_on(tmp_path, 2, 3) == [{0: 5, 1: 7}] * 3


def test_what_a_rank_changes_later_is_not_in_its_state() -> None:
    kept = np.zeros(3)
    [part] = rank_files(Counting(0, 2, kept), allow_pickle=False)
    kept += 1
    data = bytearray()
    part.write(type("Sink", (), {"write": lambda _, more: data.extend(more)})())  # type: ignore[arg-type]
    state = thaw_user_state(from_bytes(bytes(data)), NUMPY, owner="Counting", allow_pickle=False)
    assert state["kept"].tolist() == [0, 0, 0]


def test_a_class_without_states_of_ranks_has_no_file_and_is_given_none(tmp_path: Path) -> None:
    assert rank_files(Heat({"step": 3}), allow_pickle=False) == []
    # A checkpoint of before has none.
    assert restored_on(tmp_path, 2, 2) == [None, None]


def test_a_state_of_a_rank_is_pickled_only_if_the_study_allows_it(tmp_path: Path) -> None:
    with pytest.raises(
        UserCodeError, match=r"rank 0 of Counting\.rank_state_dict\(\)\.kept is a Odd, but only .*allow_pickle"
    ):
        saved_ranks(tmp_path, Odd(3))
    saved_ranks(tmp_path, Odd(3), Odd(4), allow_pickle=True)
    with pytest.raises(ConfigError, match=r"allow_pickle must be true to continue: the state of rank 0 of Counting"):
        restored_on(tmp_path, 2, 2)
    given = restored_on(tmp_path, 2, 2, allow_pickle=True)
    assert [given[0][0].value, given[1][1].value] == [3, 4]


def test_a_state_of_a_rank_waits_for_no_other() -> None:
    def save(ranks: Ranks) -> None:
        server = Counting(ranks.rank, ranks.size, "mean")
        server.hold_attributes(union_mean=UnionMean(ranks))
        with pytest.raises(UserCodeError, match="all_reduce must not be called in state_dict or rank_state_dict"):
            rank_files(server, allow_pickle=False)

    on_ranks(2, save)


def test_an_object_is_refused_and_the_setting_named() -> None:
    server = Heat({"history": [1, {"best": Odd(3)}]})
    with pytest.raises(
        UserCodeError, match=r"Heat\.state_dict\(\)\.history\.1\.best is a Odd, but only .*allow_pickle"
    ):
        user_file(server, allow_pickle=False)


def test_an_object_is_pickled_if_the_study_allows_it(tmp_path: Path) -> None:
    saved(tmp_path, Heat({"odd": Odd(3), "square": lambda number: number**2}), allow_pickle=True)
    load_user_state(tmp_path, server := Heat(), allow_pickle=True)
    assert (server.kept["odd"].value, server.kept["square"](3)) == (3, 9)


def test_a_pickled_state_is_refused_once_the_study_does_not_allow_it(tmp_path: Path) -> None:
    saved(tmp_path, Heat({"odd": Odd(3)}), allow_pickle=True)
    with pytest.raises(ConfigError, match=r"checkpoint\.allow_pickle must be true to continue: the state of Heat"):
        load_user_state(tmp_path, Heat(), allow_pickle=False)


def test_plain_state_is_not_pickled_even_if_it_may_be(tmp_path: Path) -> None:
    saved(tmp_path, Heat({"step": 3}), allow_pickle=True)
    load_user_state(tmp_path, server := Heat(), allow_pickle=False)
    assert server.kept == {"step": 3}


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    with (
        (tmp_path / "x").open("w") as file,
        pytest.raises(UserCodeError, match="the state of Heat cannot be pickled: "),
    ):
        user_file(Heat({"file": file}), allow_pickle=True)


def test_what_the_users_methods_raise_is_told_as_theirs(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"Heat\.state_dict raised KeyError"):
        user_file(Heat(KeyError("x")), allow_pickle=True)
    saved(tmp_path, Heat({}))
    with pytest.raises(UserCodeError, match=r"Heat\.load_state_dict raised KeyError"):
        load_user_state(tmp_path, Heat(KeyError("x")), allow_pickle=False)


@pytest.mark.parametrize("junk", [None, [], {}, {"kind": "plain"}, {"kind": "other", "state_dict()": 1}])
def test_junk_is_damage(tmp_path: Path, junk: object) -> None:
    (tmp_path / "model").mkdir()
    with ChecksumFile(tmp_path / "model/user.state") as file:
        write_state(file, junk)
        file.close()
    with pytest.raises(DamagedCheckpoint, match="the state of Heat is not as it was saved"):
        load_user_state(tmp_path, Heat(), allow_pickle=True)


@pytest.mark.parametrize("server_class", [StreamServer, TorchServer])
def test_tensors_of_a_users_state_come_back(server_class: type[StreamServer]) -> None:
    torch = pytest.importorskip("torch")
    framework = framework_of(server_class)
    data = bytearray()
    state = freeze_user_state({"mean": torch.ones(2)}, framework, owner="Heat", allow_pickle=False)
    state.write(type("Sink", (), {"write": lambda _, more: data.extend(more)})())
    back = thaw_user_state(from_bytes(bytes(data)), framework, owner="Heat", allow_pickle=False)
    assert torch.equal(back["mean"], torch.ones(2))


def test_the_state_of_a_server_of_another_framework_is_refused() -> None:
    pytest.importorskip("torch")
    data = bytearray()
    state = freeze_user_state({"mean": np.ones(2)}, framework_of(TorchServer), owner="Heat", allow_pickle=False)
    state.write(type("Sink", (), {"write": lambda _, more: data.extend(more)})())
    with pytest.raises(ConfigError, match="state of Heat was saved with TorchFramework, not with NumpyFramework"):
        thaw_user_state(from_bytes(bytes(data)), NUMPY, owner="Heat", allow_pickle=False)


def test_plain_state_builds_no_unpickler_and_loads_neither_cloudpickle_nor_torch() -> None:
    code = """
import pickle, sys
from stream_server.server.checkpoint.user_state import freeze_user_state, thaw_user_state
from stream_server.server.user.framework import framework_of
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.plain_state import from_bytes
import numpy, io
def refuse(*_): raise AssertionError("an unpickler")
pickle.Unpickler = pickle.loads = pickle.load = refuse
numpy_alone = framework_of(StreamServer)
state = freeze_user_state({"a": numpy.ones(3)}, numpy_alone, owner="Heat", allow_pickle=False)
file = io.BytesIO(); state.write(file)
print(thaw_user_state(from_bytes(file.getvalue()), numpy_alone, owner="Heat", allow_pickle=False)["a"].sum())
assert not {"torch", "cloudpickle"} & set(sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "3.0\n"
