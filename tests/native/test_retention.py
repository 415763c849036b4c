"""The sent steps that the C client keeps: the same as the Python client, whatever happens."""

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stream_server.client_api.retention import ENTRY_BYTES, OrderedSteps, RetainedSteps, Retention, Steps
from stream_server.messages.client import Block
from tests.native.native_client import built, library
from tests.support.examples import examples

__all__ = ["library"]

BLOCKS = [Block(field="u", dtype="<i8", shape=(), offset=(), count=())]
# Of the lines of retention_probe.c.
Line = tuple[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def probe(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(library, tmp_path_factory.mktemp("probe"), "retention_probe.c")


class Reference:
    """The Python client's, driven by the same lines."""

    def __init__(self, max_bytes: int) -> None:
        self.retention = Retention(max_bytes=max_bytes)
        self.of_connections: list[RetainedSteps] = []
        self.entered = OrderedSteps()
        self.counter = 0

    def obey(self, verb: str, numbers: Sequence[int]) -> str:
        match verb, *numbers:
            case "connection", *_:
                self.of_connections.append(self.retention.of_connection())
            case "sent", number, end, index, num, stride:
                self.of_connections[number].add(end, self._steps(index, num, stride))
            case "received", number, mark:
                self.of_connections[number].received = mark
            case "durable", number, mark:
                self.of_connections[number].durable(mark)
            case "aside", *_:
                self.retention.set_aside(self.entered)
                self.of_connections = []
            case "keep", index:
                self.retention.keep(index, self._steps(index, 1, 1))
            case "may_go", flag:
                self.retention.unsent_may_go = bool(flag)
            case "forget", index:
                self.retention.forget(index)
        return self._told()

    def _steps(self, index: int, num: int, stride: int) -> Steps:
        indices = range(index, index + num * stride, stride)
        for each in indices:
            self.entered.add(each)
        content = struct.pack(f"<{num}q", *range(self.counter, self.counter + num))
        self.counter += num
        return Steps(indices, 1, [[memoryview(content)]])

    def _told(self) -> str:
        words = [str(self.retention.num_bytes)]
        for retained in self.of_connections:
            words.append(";")
            words += [_step(sent.steps, index) for sent in retained.sent for index in sent.steps.indices]
        words.append(";")
        words += [_step(steps, index) for index, steps in self.retention.unsent.items()]
        return " ".join(words)


def _step(steps: Steps, index: int) -> str:
    (array,) = steps.arrays(index, BLOCKS)
    return f"{index}:{array}"


@st.composite
def histories(draw: st.DrawFn) -> list[Line]:
    """Servers of two ranks that come and go: even steps go to one, odd ones to the other."""
    lines: list[Line] = []
    following = [0, 1]
    for _ in range(draw(st.integers(1, 3))):
        lines += [("may_go", (0,)), ("connection", ()), ("connection", ())]
        ends, received = [0, 0], [0, 0]
        for action in draw(st.lists(st.sampled_from("ssssrrrdf"), max_size=25)):
            which = draw(st.integers(0, 1))
            if action == "s":
                num = draw(st.integers(1, 3))
                is_sent_again = draw(st.integers(0, 3)) == 0 and following[which] >= 2 * num
                index = following[which] - (2 * num if is_sent_again else 0)
                ends[which] += draw(st.integers(1, 2))
                lines.append(("sent", (which, ends[which], index, num, 2)))
                following[which] = max(following[which], index + 2 * num)
            elif action == "r":
                received[which] = draw(st.integers(received[which], ends[which]))
                lines.append(("received", (which, received[which])))
            elif action == "d":
                lines.append(("durable", (which, draw(st.integers(0, received[which])))))
            else:
                lines.append(("forget", (draw(st.integers(0, max(following))),)))
        lines += [("aside", ()), ("may_go", (draw(st.integers(0, 1)),))]
        for which in draw(st.lists(st.integers(0, 1), max_size=5)):
            lines.append(("keep", (following[which],)))
            following[which] += 2
    return lines


# Of two connections whose oldest messages were received, the one that sent earlier makes room.
OLDEST_FIRST: list[Line] = [
    *[("connection", ())] * 2,
    ("sent", (0, 1, 0, 1, 2)),
    ("sent", (1, 1, 1, 1, 2)),
    ("sent", (0, 2, 2, 1, 2)),
    *[("received", (0, 2)), ("received", (1, 1))],
    *[("sent", (which, end, index, 1, 2)) for which, end, index in ((1, 2, 3), (0, 3, 4))],
]


@example(OLDEST_FIRST, 3)
@example(OLDEST_FIRST, 4)
@settings(max_examples=examples(150))
@given(histories(), st.integers(0, 6))
def test_it_keeps_what_the_python_client_keeps(probe: Path, lines: list[Line], num_messages: int) -> None:
    max_bytes = num_messages * (ENTRY_BYTES + 8)
    reference = Reference(max_bytes)
    expected = [reference.obey(verb, numbers) for verb, numbers in lines]
    script = "\n".join(" ".join([verb, *map(str, numbers)]) for verb, numbers in lines)
    done = subprocess.run(
        [str(probe)],
        input=f"max {max_bytes}\n{script}\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:] == expected
