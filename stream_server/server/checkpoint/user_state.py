"""The state of a user's class and of its callbacks: plain, or of any kind if the study allows it.

Tensors and other arrays of the server's framework come back as what they were; arrays of other frameworks as NumPy's.
"""

from pathlib import Path
from typing import Any

from stream_server.errors import ConfigError, DamagedCheckpoint, UserCodeError
from stream_server.server.checkpoint.folder import CALLBACKS, MODEL, RANK_USER, SHARDS, USER, rank_folder
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.framework import Framework, Step, framework_of
from stream_server.server.user.stream_server import StreamServer, rank_state_of
from stream_server.storage.disk import exists
from stream_server.storage.folders import PendingFile
from stream_server.storage.plain_state import EncodedState, encode, freeze, read_state
from stream_server.storage.shards import SHARED_BY, join
from stream_server.user_code import call_user

# Errors name a place in the state by the keys above it.
_STATE = "state_dict()"


def learned_files(server: StreamServer, step: Step, callbacks: Callbacks, *, allow_pickle: bool) -> list[PendingFile]:
    """All that a checkpoint holds of the user's code, as it is now, as files to be written later. Main thread.

    Raises:
        UserCodeError: as `user_file`, or what the step has learned cannot be saved.
    """
    try:
        learned = encode(step.state_dict())
    except TypeError as error:
        raise UserCodeError(f"what {type(server).__name__} has learned cannot be saved: {error}") from error
    return [
        PendingFile(path=MODEL, write=learned.write),
        *user_files(server, callbacks, allow_pickle=allow_pickle),
    ]


def user_files(server: StreamServer, callbacks: Callbacks, *, allow_pickle: bool) -> list[PendingFile]:
    """The `user_file` and the `callbacks_file`. Main thread.

    Raises:
        UserCodeError: as `user_file`, or a `state_dict` waits for other ranks, which do not call it.
    """
    with server.union_mean.alone():
        return [
            user_file(server, allow_pickle=allow_pickle),
            callbacks_file(callbacks, framework_of(server), allow_pickle=allow_pickle),
        ]


def shard_files(server: StreamServer, step: Step) -> list[PendingFile]:
    """What this rank has of tensors that the ranks share out, as it is now, as a file to be written later; if any."""
    shards = step.shards()
    return [PendingFile(path=f"{rank_folder(server.rank)}/{SHARDS}", write=encode(shards).write)] if shards else []


def read_learned(folder: Path) -> dict[str, Any]:
    """The state of a step in a checkpoint or among the best models, of which arrays of many bytes are still in files.

    Raises:
        DamagedCheckpoint: it is not as it was saved.
    """
    state: dict[str, Any] = read_state(folder / MODEL, deferred=True)
    if num := state.get(SHARED_BY, 0):
        join(state, [read_state(folder / rank_folder(rank) / SHARDS, deferred=True) for rank in range(num)])
    return state


def load_learned(folder: Path, server: StreamServer, step: Step, callbacks: Callbacks, *, allow_pickle: bool) -> None:
    """Give the user's code what `learned_files` has put into a checkpoint's folder. Main thread.

    Raises:
        ConfigError, DamagedCheckpoint: as `load_user_state`.
        UserCodeError: likewise, or the class makes another model.
    """
    step.load_state_dict(read_learned(folder))
    load_user_state(folder, server, allow_pickle=allow_pickle)
    load_callbacks_state(folder, callbacks, framework_of(server), allow_pickle=allow_pickle)


def user_file(server: StreamServer, *, allow_pickle: bool) -> PendingFile:
    """The server's own `state_dict` as it is now, as a file to be written later. Main thread.

    Raises:
        UserCodeError: `state_dict` raised, or gave what is not plain and may not be pickled, or cannot be.
    """
    owner = type(server).__name__
    state = call_user(f"{owner}.state_dict", server.state_dict)
    frozen = freeze_user_state(state, framework_of(server), owner=owner, allow_pickle=allow_pickle)
    return PendingFile(path=USER, write=frozen.write)


def load_user_state(folder: Path, server: StreamServer, *, allow_pickle: bool) -> None:
    """Give the server's own `load_state_dict` the state in a checkpoint's folder. Main thread.

    Raises:
        ConfigError: it was pickled, which the study does not allow any more, or is of a server of another framework.
        DamagedCheckpoint: it is not as it was saved.
        UserCodeError: `load_state_dict` raised, or the state cannot be unpickled.
    """
    owner = type(server).__name__
    saved = read_state(folder / USER)
    state = thaw_user_state(saved, framework_of(server), owner=owner, allow_pickle=allow_pickle)
    call_user(f"{owner}.load_state_dict", server.load_state_dict, state)


def rank_files(server: StreamServer, *, allow_pickle: bool) -> list[PendingFile]:
    """The server's `rank_state_dict` as it is now, as a file to be written later; none if it has none. Main thread.

    Raises:
        UserCodeError: as `user_file`.
    """
    if type(server).rank_state_dict is StreamServer.rank_state_dict:
        return []
    state, owner = rank_state_of(server), f"rank {server.rank} of {type(server).__name__}"
    frozen = freeze_user_state(
        state, framework_of(server), owner=owner, allow_pickle=allow_pickle, method=f"rank_{_STATE}"
    )
    return [PendingFile(path=f"{rank_folder(server.rank)}/{RANK_USER}", write=frozen.write)]


def load_rank_states(folder: Path, num_saved: int, server: StreamServer, *, allow_pickle: bool) -> None:
    """Give a server the state of its rank or, if another number of ranks saved it, of all, if any is there.

    Raises:
        ConfigError, DamagedCheckpoint, UserCodeError: as `load_user_state`.
    """
    states, owner, framework = {}, type(server).__name__, framework_of(server)
    for rank in [server.rank] if num_saved == server.num_ranks else range(num_saved):
        path, of_rank = folder / rank_folder(rank) / RANK_USER, f"rank {rank} of {owner}"
        if exists(path):
            states[rank] = thaw_user_state(read_state(path), framework, owner=of_rank, allow_pickle=allow_pickle)
    if states:
        call_user(f"{owner}.load_rank_state_dict", server.load_rank_state_dict, states)


def callbacks_file(callbacks: Callbacks, framework: Framework, *, allow_pickle: bool) -> PendingFile:
    """The `state_dict` of each of the user's callbacks as it is now, as a file to be written later. Main thread.

    Raises:
        UserCodeError: as `user_file`.
    """
    frozen = freeze_user_state(callbacks.user_states(), framework, owner="callbacks", allow_pickle=allow_pickle)
    return PendingFile(path=CALLBACKS, write=frozen.write)


def load_callbacks_state(folder: Path, callbacks: Callbacks, framework: Framework, *, allow_pickle: bool) -> None:
    """Give each of the user's callbacks its state in a checkpoint's folder. Main thread.

    Raises:
        ConfigError, DamagedCheckpoint, UserCodeError: as `load_user_state`.
    """
    saved = read_state(folder / CALLBACKS)
    callbacks.load_user_states(thaw_user_state(saved, framework, owner="callbacks", allow_pickle=allow_pickle))


def freeze_user_state(
    state: Any, framework: Framework, *, owner: str, allow_pickle: bool, method: str = _STATE
) -> EncodedState:
    """What `method` gave, as it is now. Only if it is not plain, and with `allow_pickle`, it is pickled as a whole.

    Raises:
        UserCodeError: it is nothing, or not plain and may not be pickled, or cannot be.
    """
    if state is None:
        raise UserCodeError(f"{owner}.{method} returned None: return the state that a restart needs, or {{}}")
    try:
        plain = framework.plain(state, f"{owner}.{_STATE}")
        return freeze({"kind": "plain", "framework": type(framework).__name__, _STATE: plain}, owner)
    except TypeError as error:
        if not allow_pickle:
            where = str(error).replace(_STATE, method, 1)
            raise UserCodeError(
                f"{where}. Return plain values; or set checkpoint.allow_pickle to true, if nobody else can write where "
                "the checkpoints are: continuing from one may then run any code that is in it"
            ) from error
    return encode({"kind": "pickled", _STATE: _pickle(state, owner)})


def thaw_user_state(saved: Any, framework: Framework, *, owner: str, allow_pickle: bool) -> Any:
    """The state that `freeze_user_state` was given, out of what was read.

    Raises:
        ConfigError: it was pickled, and may not be, or is of a server of another framework.
        DamagedCheckpoint: it is something else.
        UserCodeError: it cannot be unpickled.
    """
    match saved:
        case {"kind": "plain", "framework": str(name), "state_dict()": state}:
            if name != type(framework).__name__:
                raise ConfigError(f"the state of {owner} was saved with {name}, not with {type(framework).__name__}")
            return framework.restored(state)
        case {"kind": "pickled", "state_dict()": bytes(data)} if allow_pickle:
            return _unpickle(data, owner)
        case {"kind": "pickled"}:
            raise ConfigError(
                f"checkpoint.allow_pickle must be true to continue: the state of {owner} was pickled, and loading it "
                "may run any code that is in it"
            )
    raise DamagedCheckpoint(f"the state of {owner} is not as it was saved")


def _pickle(state: Any, owner: str) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        return bytes(cloudpickle.dumps(state))
    except Exception as error:
        raise UserCodeError(f"the state of {owner} cannot be pickled: {type(error).__name__}: {error}") from error


def _unpickle(data: bytes, owner: str) -> Any:
    import cloudpickle

    try:
        return cloudpickle.loads(data)
    except Exception as error:
        raise UserCodeError(f"the state of {owner} cannot be unpickled: {type(error).__name__}: {error}") from error
