"""Events go to the server first, then to the callbacks in their order."""

import inspect
from pathlib import Path

import pytest

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.training.callbacks import EVENTS, Callback, Callbacks


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
    Callbacks(server, [Listener("a"), Listener("b")]).on_batch_end("batch", 7, 0.5)
    assert server.heard == [("server", "batch", 7, 0.5), ("a", "batch", 7, 0.5), ("b", "batch", 7, 0.5)]


def test_every_event_can_be_told_to_callbacks_that_ignore_it() -> None:
    callbacks = Callbacks(Server(), [Callback()])
    callbacks.on_train_start()
    callbacks.on_batch_start("batch", 0)
    callbacks.on_batch_end("batch", 0, 0.5)
    callbacks.on_validation_start()
    callbacks.on_validation_end({"loss": 1.0})
    callbacks.on_checkpoint(Path("000001"))
    callbacks.on_simulation_finished(3)
    callbacks.on_reception_end()
    callbacks.on_train_end()


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_takes_the_server_and_then_what_the_server_itself_is_told(event: str) -> None:
    of_callback = list(inspect.signature(getattr(Callback, event)).parameters)
    of_callbacks = list(inspect.signature(getattr(Callbacks, event)).parameters)
    assert of_callback == ["self", "server", *of_callbacks[1:]]


def test_a_callback_that_raises_is_named() -> None:
    with pytest.raises(UserCodeError, match=r"Clumsy\.on_train_start raised ZeroDivisionError: no batches") as raised:
        Callbacks(Server(), [Listener("a"), Clumsy()]).on_train_start()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_an_error_of_the_package_passes_through_a_callback_unchanged() -> None:
    with pytest.raises(ConfigError, match=r"user\.lr is missing"):
        Callbacks(Server(), [Configured()]).on_train_start()


def test_something_that_is_no_callback_is_refused() -> None:
    with pytest.raises(UserCodeError, match="one is Server"):
        Callbacks(Server(), [Server()])  # type: ignore[list-item]


def test_each_callback_gets_its_own_metrics() -> None:
    class Spoiler(Callback):
        def on_validation_end(self, server: Server, metrics: dict[str, float]) -> None:
            metrics.clear()

    metrics = {"loss": 1.0}
    Callbacks(Server(), [Spoiler()]).on_validation_end(metrics)
    assert metrics == {"loss": 1.0}
