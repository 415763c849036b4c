"""Messages of one connection that follow each other as a ruler's marks do. Pure."""

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from stream_server.client_api.messages import Data
from stream_server.server.layout import Place

BEFORE = struct.calcsize("<4sHHQII")
NUMBERS = struct.Struct("<QQ")
BEHIND = BEFORE + NUMBERS.size


@dataclass(eq=False, slots=True)
class Streak:
    """The messages that differ from the one before in nothing but sequence and step, each one further on.

    A simulation sends little else, and such a message need not be looked at as closely as the first. `sequence` and
    `index` are what the next one must have; `num_messages` with the steps from `first` on are received into `slots`
    and not settled yet; `room` is for how many more steps the assembly need not be asked.
    """

    header: bytes
    targets: list[tuple[Place, npt.NDArray[Any]]]
    stride: int
    num_steps: int
    sequence: int
    index: int
    first: int = 0
    num_messages: int = 0
    room: int = 0
    slots: list[int] = field(default_factory=list)

    @classmethod
    def after(
        cls, data: Data, header: bytes, *, stride: int, targets: list[tuple[Place, npt.NDArray[Any]]]
    ) -> "Streak":
        """What may follow a message."""
        return cls(
            header=header[:BEFORE] + header[BEHIND:],
            targets=targets,
            stride=stride,
            num_steps=data.num_steps,
            sequence=data.sequence + 1,
            index=data.index + data.num_steps * stride,
        )

    def goes_on(self, header: bytes) -> bool:
        """Whether this is the header of the next message."""
        return header[:BEFORE] + header[BEHIND:] == self.header and NUMBERS.unpack_from(header, BEFORE) == (
            self.sequence,
            self.index,
        )

    def add(self, slots: list[int]) -> None:
        """The next message is in these slots."""
        if not self.num_messages:
            self.first = self.index
        self.slots += slots
        self.num_messages += 1
        self.pass_over()

    def pass_over(self) -> None:
        """The next message has come, and is dealt with elsewhere."""
        self.sequence += 1
        self.index += self.num_steps * self.stride
        self.room -= self.num_steps
