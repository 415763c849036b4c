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
    """The checkpoints of a training. Main thread; `hear` and `take` are collective, since sums decide what they do."""

    @property
    def due(self) -> bool:
        """All ranks agreed on a checkpoint, which is to be taken between two steps."""
        ...

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

    def take(self) -> None:
        """Take the checkpoint that is due now."""
        ...


class NoSaves:
    """Nothing is ever saved."""

    due = False
    wait_s = math.inf

    def words(self) -> SaveWords:
        return NOTHING

    def hear(self, said: SaveWords) -> None:
        pass

    def take(self) -> None:
        pass
