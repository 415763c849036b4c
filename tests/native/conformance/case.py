"""A case of the conformance suite."""

from dataclasses import dataclass, field
from typing import Any

from stream_server.messages.client import FieldSpec, TimeSteps


@dataclass(frozen=True, kw_only=True)
class Case:
    """A study, and what a simulation does in it.

    What the lines of the script mean is told in script.py; what they put on the wire is in tests/vectors. `server` are
    attributes of the server, `files` are put beside the connection file. `own_words`: each language tells the mistakes
    of this case in its own words, since their parsers of JSON are others. `gathers`: several steps may travel in one
    message, which is a matter of time; they are compared as if each had travelled alone.
    """

    name: str
    about: str
    script: str
    fields: tuple[FieldSpec, ...] = ()
    num_ranks: int = 1
    time_steps: TimeSteps | None = None
    transport: str = "ipc"
    launched: bool = True
    server: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    own_words: bool = False
    gathers: bool = False


U = FieldSpec(name="u", shape=(6, 4))
SMALL = FieldSpec(name="u", shape=(4,))
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
HUGE = (3, 262144)
MESH = FieldSpec(name="mesh", shape=(6, 2), per="simulation")


def steps(num: int, dtype: str = "float64", count: str = "4", first: int = 0) -> str:
    """Lines that put and send so many steps of u."""
    return "\n".join(f"put u {dtype} {count} {step}\nsend {step}" for step in range(first, first + num))
