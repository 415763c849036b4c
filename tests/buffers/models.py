"""Each policy in a few lines: what is in it, and which answers of the real one would be legal."""

from collections import Counter
from collections.abc import Sequence

from stream_server.buffers.policy import Drawn


def are_equally_likely(counts: Sequence[int]) -> bool:
    """Whether these counts of as many outcomes are what chance makes of equal probabilities."""
    # Its import takes 0.9 s of a core, which only the process that runs such a test is to pay.
    from scipy.stats import chisquare

    return bool(chisquare(counts).pvalue > 1e-4)


class Model:
    """A population with the number of draws of each slot; subclasses say what a legal draw and eviction are."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.draws: dict[int, int] = {}
        self.closed = False

    @property
    def unseen(self) -> set[int]:
        return {slot for slot, num in self.draws.items() if num == 0}

    @property
    def room(self) -> int:
        return self.capacity - len(self.draws)

    @property
    def num_left(self) -> int:
        return len(self.draws)

    def gate(self, num: int) -> bool:
        return len(self.draws) >= num

    def put(self, slots: list[int], evicted: list[int]) -> None:
        assert evicted == []
        self.draws.update(dict.fromkeys(slots, 0))

    def draw(self, drawn: Drawn) -> None:
        counts = Counter(drawn.slots.tolist())
        assert drawn.num_first == len(self.unseen & set(counts))
        for slot, num in counts.items():
            self.draws[slot] += num
        self.forget(drawn.removed.tolist())

    def forget(self, slots: list[int]) -> int:
        return sum(self.draws.pop(slot) == 0 for slot in slots)

    def withdraw(self, slots: list[int]) -> int:
        return self.forget(slots)


class FifoModel(Model):
    def draw(self, drawn: Drawn) -> None:
        assert drawn.slots.tolist() == drawn.removed.tolist() == list(self.draws)[: len(drawn.slots)]
        super().draw(drawn)


class FiroModel(Model):
    def __init__(self, capacity: int, watermark: int, pseudo_epochs: int) -> None:
        super().__init__(capacity)
        self.watermark = watermark
        self.pseudo_epochs = pseudo_epochs

    @property
    def num_left(self) -> int:
        return sum(self.pseudo_epochs - num for num in self.draws.values())

    def gate(self, num: int) -> bool:
        return len(self.draws) >= max(num, self.watermark)

    def draw(self, drawn: Drawn) -> None:
        assert len(set(drawn.slots.tolist())) == min(len(drawn.slots), len(self.draws)) or self.closed
        after = Counter(self.draws) + Counter(drawn.slots.tolist())
        assert max(after.values()) <= self.pseudo_epochs
        assert sorted(drawn.removed.tolist()) == sorted(slot for slot in after if after[slot] == self.pseudo_epochs)
        super().draw(drawn)


class ReservoirModel(Model):
    def __init__(self, capacity: int, watermark: int, draws_per_sample: float | None) -> None:
        super().__init__(capacity)
        self.watermark = watermark
        self.ratio = draws_per_sample
        self.num_inserts = self.num_draws = 0

    @property
    def room(self) -> int:
        return self.capacity - len(self.unseen)

    @property
    def num_left(self) -> int:
        if self.ratio is None or not self.draws:
            return len(self.draws)
        return max(round(self.ratio * self.num_inserts) - self.num_draws, len(self.unseen))

    def gate(self, num: int) -> bool:
        if len(self.draws) < max(num, self.watermark):
            return False
        return not self.ratio or not self.room or self.num_draws <= self.ratio * self.num_inserts - len(self.draws)

    def put(self, slots: list[int], evicted: list[int]) -> None:
        assert len(evicted) == len(set(evicted)) == max(0, len(self.draws) + len(slots) - self.capacity)
        assert self.unseen.isdisjoint(evicted)
        self.num_inserts += len(slots)
        self.forget(evicted)
        super().put(slots, [])

    def draw(self, drawn: Drawn) -> None:
        num = len(drawn.slots)
        assert len(set(drawn.slots.tolist())) == num
        num_removed = max(0, num - max(0, self.num_left - len(self.draws))) if self.closed else 0
        assert len(set(drawn.removed.tolist()) & set(drawn.slots.tolist())) == len(drawn.removed) == num_removed
        self.num_draws += num
        super().draw(drawn)

    def withdraw(self, slots: list[int]) -> int:
        num_unseen = self.forget(slots)
        self.num_inserts -= num_unseen
        return num_unseen
