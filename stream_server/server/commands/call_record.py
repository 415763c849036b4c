"""A record of the calls of a user's class, with arguments and results."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stream_server.ragged import is_ragged
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData

MAX_ITEMS = 6


@dataclass(slots=True)
class Call:
    """The number of calls of a method, with the arguments and the result of the first call as text."""

    given: str
    returned: str = "nothing: it raised"
    num: int = 1


class CallRecord:
    """Listens at the methods of an object. The methods work as before."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}

    def listen(self, listened: Any, methods: Iterable[str]) -> None:
        """Record every call of these methods of `listened` from now on."""
        for name in methods:
            setattr(listened, name, self._recorder(name, getattr(listened, name)))

    def _recorder(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            first = name not in self.calls
            if first:
                self.calls[name] = Call(given=", ".join(described(argument) for argument in arguments) or "nothing")
            else:
                self.calls[name].num += 1
            returned = method(*arguments, **keywords)
            if first:
                self.calls[name].returned = described(returned)
            return returned

        return call


def described(value: Any) -> str:
    """Describe a value briefly: arrays by type and shape, containers by what is in them, others by their class."""
    if value is None:
        return "nothing"
    if isinstance(value, SimulationData | SimulationBatch):
        return f"{type(value).__name__}(parameters={described(value.parameters)}, {_items(value.fields, '=')})"
    if is_ragged(value):
        return described(value.tolist())
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        return dtype if not value.shape else f"{dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, Mapping):
        return "{" + _items(value, ": ") + "}"
    if isinstance(value, tuple | list):
        shown = [described(item) for item in value[:MAX_ITEMS]] + ["…"] * (len(value) > MAX_ITEMS)
        return f"({', '.join(shown)})" if isinstance(value, tuple) else f"[{', '.join(shown)}]"
    if isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__


def _items(values: Mapping[Any, Any], sign: str) -> str:
    shown = [f"{name}{sign}{described(value)}" for name, value in list(values.items())[:MAX_ITEMS]]
    return ", ".join(shown + ["…"] * (len(values) > MAX_ITEMS))
