"""What the ranks say of their checkpoints in the control round."""

import math
from typing import NamedTuple, Protocol


class SaveWords(NamedTuple):
    """What one rank says, or, added up, all of them.

    `wanted`: a checkpoint is due. `written`: this rank's part of the one under way is on disk; `failed`: it, or the
    commit, failed. `committed`: the generation is in place (rank 0).
    """

    wanted: int = 0
    written: int = 0
    failed: int = 0
    committed: int = 0


NOTHING = SaveWords()


class Saves(Protocol):
    """The checkpoints of a training, as far as the rounds know of them. Main thread; `hear` is collective."""

    @property
    def wait_s(self) -> float:
        """How soon the next round is wanted."""
        ...

    def words(self) -> SaveWords:
        """What this rank says in the next round."""
        ...

    def hear(self, said: SaveWords) -> None:
        """What all ranks said."""
        ...


class NoSaves:
    """Nothing is ever saved."""

    wait_s = math.inf

    def words(self) -> SaveWords:
        return NOTHING

    def hear(self, said: SaveWords) -> None:
        pass
