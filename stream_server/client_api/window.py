"""Flow control of one connection: how many steps are on their way, and how many more may be."""

from collections import deque


class Window:
    """Steps that the server has not acknowledged, at most `credit` of them: `room` for so many more is left."""

    def __init__(self, credit: int) -> None:
        self.sequence = 0
        self.room = credit
        self._on_the_way: deque[tuple[int, int]] = deque()

    def sent(self, *, num_steps: int, num_messages: int) -> None:
        """Steps have been sent that are complete with the last of these messages."""
        self.sequence += num_messages
        self.room -= num_steps
        self._on_the_way.append((self.sequence, num_steps))

    def received(self, mark: int) -> None:
        """The server has received all messages with a smaller sequence than `mark`."""
        while self._on_the_way and self._on_the_way[0][0] <= mark:
            self.room += self._on_the_way.popleft()[1]
