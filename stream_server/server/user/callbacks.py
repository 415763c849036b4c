"""Callbacks: user code that is called at the events of a training."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stream_server.errors import UserCodeError
from stream_server.user_code import call_user


class Callback:
    """Actions at the events of a training; override the events of interest.

    Every event is called in the main thread of each rank, with no lock held, after the method of the same
    name on the server. Only `on_batch_start` and `on_batch_end` are called on some ranks alone: those that
    have a batch in this step. `state_dict` is saved in every checkpoint, by rank 0, and given back on every rank.
    """

    def on_train_start(self, server: Any) -> None:
        """The model is set up; no batch was drawn yet."""

    def on_round(self, server: Any) -> None:
        """The ranks are about to agree on what comes next, which they do for each batch and at least once a second."""

    def on_round_start(self, server: Any, round_idx: int) -> None:
        """The first batch with a sample of this round of `study.rounds` is about to be trained, on every rank."""

    def on_round_end(self, server: Any, round_idx: int) -> None:
        """All samples of this round of `study.rounds` are trained, and none of the next one; on every rank."""

    def on_train_end(self, server: Any) -> None:
        """Every batch is trained and the last validation done; not called when the study fails."""

    def on_batch_start(self, server: Any, batch: Any, batch_idx: int) -> None:
        """`batch` is about to be passed to `training_step`."""

    def on_batch_end(self, server: Any, batch: Any, batch_idx: int, loss: Any) -> None:
        """`loss` is what `training_step` returned on this rank."""

    def on_gradients(self, server: Any, model: Any) -> None:
        """The gradients of `model` are those of the union batch, on every rank; what is changed in them is used."""

    def on_step_end(self, server: Any) -> None:
        """A training step is over, on every rank, also on those that had no batch for it."""

    def on_validation_start(self, server: Any) -> None:
        """A validation begins, on every rank."""

    def on_validation_end(self, server: Any, metrics: dict[str, float]) -> None:
        """`metrics` are the means over all ranks, the same on each."""

    def on_checkpoint(self, server: Any, path: Path) -> None:
        """A checkpoint is committed in the folder `path`."""

    def on_simulation_finished(self, server: Any, simulation_id: int) -> None:
        """All that this simulation produced has been received."""

    def on_reception_end(self, server: Any) -> None:
        """No more samples will come; what is in the buffer is still to be trained."""

    def state_dict(self) -> dict[str, Any]:
        """The state to keep over a restart, as plain containers and arrays."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class Callbacks:
    """Calls an event on the server and on every callback, in their order.

    The user's callbacks come in the order in which `configure_callbacks` gave them, after the server's own method, and
    built-in callbacks `surround` them. An exception of a user's event becomes a `UserCodeError` that names whose event
    it was; an error of ours that passes through stays what it is.
    """

    def __init__(self, server: Any, callbacks: Iterable[Callback] = ()) -> None:
        self._server = server
        self._users = call_user("configure_callbacks", tuple, callbacks)
        self._built_in: list[Callback] = []
        self._listening: dict[str, list[Callable[..., Any]]] = {event: [] for event in EVENTS}
        for event in EVENTS:
            own = getattr(server, event, None)
            if own is not None and not (own.__module__ or "").startswith("stream_server."):
                self._listening[event].append(partial(call_user, f"{type(server).__name__}.{event}", own))
        for callback in self._users:
            if not isinstance(callback, Callback):
                text = f"configure_callbacks must return Callback objects, but one is {type(callback).__name__}"
                raise UserCodeError(text)
            for event in EVENTS:
                name = f"{type(callback).__name__}.{event}"
                self._listening[event] += [
                    partial(call_user, name, call, server) for call in _methods([callback], event)
                ]
        self._users_listening = dict(self._listening)

    def surround(self, *, before: Sequence[Callback] = (), after: Sequence[Callback] = ()) -> None:
        """Tell built-in callbacks of each event, `before` and `after` the server and the user's callbacks."""
        self._built_in += [*before, *after]
        for event in EVENTS:
            first, last = (
                [partial(call, self._server) for call in _methods(group, event)] for group in (before, after)
            )
            self._listening[event] = [*first, *self._listening[event], *last]

    def hears(self, event: str) -> bool:
        """Whether user code listens to an event."""
        return bool(self._users_listening[event])

    def tell(self, event: str, *arguments: Any, only_users: bool = False) -> None:
        """Call one of `EVENTS`; the arguments are those of `Callback` without the server."""
        for method in (self._users_listening if only_users else self._listening)[event]:
            method(*arguments)

    def state_dict(self) -> dict[str, Any]:
        """The states of the built-in callbacks, by name; those without any are left out."""
        states = {name: callback.state_dict() for name, callback in _with_names(self._built_in)}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the states that `state_dict` returned; a built-in callback that was not in use then starts over."""
        for name, callback in _with_names(self._built_in):
            if name in states:
                callback.load_state_dict(states[name])

    def user_states(self) -> dict[str, Any]:
        """The states of the user's callbacks by name, as their `state_dict` gives them; without empty ones."""
        states = {
            name: call_user(f"{name}.state_dict", callback.state_dict) for name, callback in _with_names(self._users)
        }
        return {name: state for name, state in states.items() if state}

    def user_attributes(self) -> dict[str, dict[str, Any]]:
        """The attributes of each of the user's callbacks, by its name."""
        return {name: vars(callback) for name, callback in _with_names(self._users)}

    def load_user_states(self, states: Mapping[str, Any]) -> None:
        """Give each of the user's callbacks its state in the result of `user_states`.

        Raises:
            UserCodeError: a `load_state_dict` raised, or the callback of a saved state is not there any more.
        """
        callbacks = dict(_with_names(self._users))
        for name, state in states.items():
            if name not in callbacks:
                raise UserCodeError(
                    f"the checkpoint has the state of a callback {name}, which configure_callbacks does not return "
                    "any more: return it again, or start over with --fresh"
                )
            call_user(f"{name}.load_state_dict", callbacks[name].load_state_dict, state)


def _methods(callbacks: Iterable[Callback], event: str) -> list[Callable[..., Any]]:
    """The methods of the callbacks that override an event: nothing is called for the others."""
    return [getattr(each, event) for each in callbacks if getattr(type(each), event) is not getattr(Callback, event)]


def _with_names(callbacks: Iterable[Callback]) -> Iterator[tuple[str, Callback]]:
    """Each callback by the name of its class; the second of the same class is `Name-2`."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name}-{seen[name]}"), callback
