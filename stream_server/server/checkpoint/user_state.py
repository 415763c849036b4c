"""The state of a user's server class, and of the callbacks: plain, or any Python object if the study allows it."""

import sys
from pathlib import Path
from typing import Any

from stream_server.errors import ConfigError, DamagedCheckpoint, UserCodeError
from stream_server.server.checkpoint.part import Part
from stream_server.server.plain_state import EncodedState, encode, freeze, read_state
from stream_server.server.stream_server import StreamServer
from stream_server.server.training.callbacks import Callbacks, call_user

USER = "model/user.state"
CALLBACKS = "model/callbacks.state"

# Errors name a place in the state by the keys above it.
_STATE = "state_dict()"


def user_part(server: StreamServer, *, allow_pickle: bool) -> Part:
    """What the server's own `state_dict` gives now, to be written later. Main thread.

    Raises:
        UserCodeError: it raised, or gave what is not plain and may not be pickled, or cannot be.
    """
    owner = type(server).__name__
    state = freeze_user_state(
        call_user(f"{owner}.state_dict", server.state_dict), owner=owner, allow_pickle=allow_pickle
    )
    return Part(path=USER, write=state.write)


def load_user_state(folder: Path, server: StreamServer, *, allow_pickle: bool) -> None:
    """Give the server's own `load_state_dict` what is in this generation's folder. Main thread.

    Raises:
        ConfigError: it was pickled, which the study does not allow any more.
        DamagedCheckpoint: it is not as it was saved.
        UserCodeError: `load_state_dict` raised, or the state cannot be unpickled.
    """
    owner = type(server).__name__
    state = thawed_user_state(read_state(folder / USER), owner=owner, allow_pickle=allow_pickle)
    call_user(f"{owner}.load_state_dict", server.load_state_dict, state)


def callbacks_part(callbacks: Callbacks, *, allow_pickle: bool) -> Part:
    """What the `state_dict` of each of the user's callbacks gives now, to be written later. Main thread.

    Raises:
        UserCodeError: as `user_part`.
    """
    state = freeze_user_state(callbacks.user_states(), owner="callbacks", allow_pickle=allow_pickle)
    return Part(path=CALLBACKS, write=state.write)


def load_callbacks_state(folder: Path, callbacks: Callbacks, *, allow_pickle: bool) -> None:
    """Give each of the user's callbacks what is of it in this generation's folder. Main thread.

    Raises:
        as `load_user_state`.
    """
    state = thawed_user_state(read_state(folder / CALLBACKS), owner="callbacks", allow_pickle=allow_pickle)
    callbacks.load_user_states(state)


def freeze_user_state(state: Any, *, owner: str, allow_pickle: bool) -> EncodedState:
    """The state as it is now. Only what is not plain is pickled, as a whole, and only with `allow_pickle`.

    Raises:
        UserCodeError: it is not plain and may not be pickled, or cannot be.
    """
    try:
        # Without torch in the process there is no tensor in the state.
        if "torch" not in sys.modules:
            return freeze({"kind": "plain", _STATE: state}, owner)
        from stream_server.server.torch_state import plain

        return freeze({"kind": "tensors", _STATE: plain(state, f"{owner}.{_STATE}")}, owner)
    except TypeError as error:
        if not allow_pickle:
            raise UserCodeError(
                f"{error}. Return plain values; or set checkpoint.allow_pickle to true, if nobody else can write where "
                "the checkpoints are: continuing from one may then run any code that is in it"
            ) from error
    return encode({"kind": "pickled", _STATE: _pickled(state, owner)})


def thawed_user_state(saved: Any, *, owner: str, allow_pickle: bool) -> Any:
    """What `freeze_user_state` was given, out of what was read.

    Raises:
        ConfigError: it was pickled, and may not be.
        DamagedCheckpoint: it is something else.
        UserCodeError: it cannot be unpickled.
    """
    match saved:
        case {"kind": "plain", "state_dict()": state}:
            return state
        case {"kind": "tensors", "state_dict()": state}:
            from stream_server.server.torch_state import restored

            return restored(state)
        case {"kind": "pickled", "state_dict()": bytes(data)} if allow_pickle:
            return _unpickled(data, owner)
        case {"kind": "pickled"}:
            raise ConfigError(
                f"checkpoint.allow_pickle must be true to continue: the state of {owner} was pickled, and loading it "
                "may run any code that is in it"
            )
    raise DamagedCheckpoint(f"the state of {owner} is not as it was saved")


def _pickled(state: Any, owner: str) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        return bytes(cloudpickle.dumps(state))
    except Exception as error:
        raise UserCodeError(f"the state of {owner} cannot be pickled: {type(error).__name__}: {error}") from error


def _unpickled(data: bytes, owner: str) -> Any:
    import cloudpickle

    try:
        return cloudpickle.loads(data)
    except Exception as error:
        raise UserCodeError(f"the state of {owner} cannot be unpickled: {type(error).__name__}: {error}") from error
