"""Events go to the server first, then to the callbacks in their order."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.user.callbacks import EVENTS, Callback, Callbacks
from stream_server.server.user.stream_server import StreamServer


class Server:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_batch_end(self, batch: object, batch_idx: int, loss: float) -> None:
        self.heard.append(("server", batch, batch_idx, loss))


class Listener(Callback):
    def __init__(self, name: str) -> None:
        self.name = name

    def on_batch_end(self, server: Server, batch: object, batch_idx: int, loss: float) -> None:
        server.heard.append((self.name, batch, batch_idx, loss))


class Clumsy(Callback):
    def on_train_start(self, server: Server) -> None:
        raise ZeroDivisionError("no batches")


class Configured(Callback):
    def on_train_start(self, server: Server) -> None:
        raise ConfigError("user.lr is missing")


def test_an_event_goes_to_the_server_first_and_then_to_the_callbacks_in_order() -> None:
    server = Server()
    Callbacks(server, [Listener("a"), Listener("b")]).tell("on_batch_end", "batch", 7, 0.5)
    assert server.heard == [("server", "batch", 7, 0.5), ("a", "batch", 7, 0.5), ("b", "batch", 7, 0.5)]


def test_every_event_can_be_told_to_callbacks_that_ignore_it() -> None:
    callbacks = Callbacks(Server(), [Callback()])
    callbacks.tell("on_train_start")
    callbacks.tell("on_batch_start", "batch", 0)
    callbacks.tell("on_batch_end", "batch", 0, 0.5)
    callbacks.tell("on_validation_start")
    callbacks.tell("on_validation_end", {"loss": 1.0})
    callbacks.tell("on_checkpoint", Path("000001"))
    callbacks.tell("on_simulation_finished", 3)
    callbacks.tell("on_reception_end")
    callbacks.tell("on_train_end")


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_takes_the_server_and_then_what_the_server_itself_is_told(event: str) -> None:
    of_callback = list(inspect.signature(getattr(Callback, event)).parameters)
    of_server = list(inspect.signature(getattr(StreamServer, event)).parameters)
    assert of_callback == ["self", "server", *of_server[1:]]


def test_a_callback_that_raises_is_named() -> None:
    with pytest.raises(UserCodeError, match=r"Clumsy\.on_train_start raised ZeroDivisionError: no batches") as raised:
        Callbacks(Server(), [Listener("a"), Clumsy()]).tell("on_train_start")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_an_error_of_the_package_passes_through_a_callback_unchanged() -> None:
    with pytest.raises(ConfigError, match=r"user\.lr is missing"):
        Callbacks(Server(), [Configured()]).tell("on_train_start")


def test_something_that_is_no_callback_is_refused() -> None:
    with pytest.raises(UserCodeError, match="one is Server"):
        Callbacks(Server(), [Server()])  # type: ignore[list-item]


class Counter(Callback):
    """Counts the steps, and keeps the number."""

    def __init__(self) -> None:
        self.num = 0

    def on_step_end(self, server: Any) -> None:
        self.num += 1

    def state_dict(self) -> dict[str, Any]:
        return {"num": self.num} if self.num else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num = state["num"]


def test_built_in_callbacks_surround_the_server_and_the_users_callbacks() -> None:
    server = Server()
    callbacks = Callbacks(server, [Listener("user")])
    callbacks.surround(before=[Listener("first"), Listener("second")], after=[Listener("last")])
    callbacks.tell("on_batch_end", "batch", 7, 0.5)
    assert [heard[0] for heard in server.heard] == ["first", "second", "server", "user", "last"]  # type: ignore[index]


def test_what_a_built_in_behaviour_raises_is_not_blamed_on_the_user() -> None:
    callbacks = Callbacks(Server())
    callbacks.surround(before=[Clumsy()])
    with pytest.raises(ZeroDivisionError):
        callbacks.tell("on_train_start")


def test_states_come_back_by_name_also_of_two_of_a_kind() -> None:
    def make() -> tuple[Callbacks, list[Counter]]:
        users, built_in = [Counter(), Counter()], [Counter(), Counter()]
        callbacks = Callbacks(Server(), users)
        callbacks.surround(before=built_in[:1], after=built_in[1:])
        return callbacks, [*users, *built_in]

    callbacks, counters = make()
    for number, counter in enumerate(counters):
        counter.num = number + 1
    users, built_in = callbacks.user_states(), callbacks.state_dict()
    assert users == {"Counter": {"num": 1}, "Counter-2": {"num": 2}}
    assert built_in == {"Counter": {"num": 3}, "Counter-2": {"num": 4}}
    others, restored = make()
    others.load_state_dict(built_in)
    others.load_user_states(users)
    assert [counter.num for counter in restored] == [1, 2, 3, 4]


def test_the_state_of_a_callback_that_is_gone_is_not_dropped_silently() -> None:
    with pytest.raises(UserCodeError, match=r"a callback Counter, which configure_callbacks does not return any more"):
        Callbacks(Server()).load_user_states({"Counter": {"num": 1}})


def test_a_behaviour_that_was_not_in_use_begins_anew() -> None:
    callbacks, counter = Callbacks(Server()), Counter()
    callbacks.surround(after=[counter])
    callbacks.load_state_dict({"Gone": {"num": 1}})
    assert counter.num == 0


def test_a_state_that_raises_names_the_callback() -> None:
    class Forgetful(Callback):
        def state_dict(self) -> dict[str, Any]:
            raise KeyError("num")

    with pytest.raises(UserCodeError, match=r"Forgetful\.state_dict raised KeyError"):
        Callbacks(Server(), [Forgetful()]).user_states()
