"""Receivers in this process whose clients reach them through proxies only."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock

import msgspec

from stream_server.messages.client import Away
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.curve import KeyPair
from tests.faults.network.faults import Fault
from tests.faults.network.proxy import Proxy
from tests.support.reception import Reception, StudyShape, reception

# No client is on this node, so each takes the addresses of TCP.
ELSEWHERE = "another node"


@dataclass(kw_only=True)
class Crossing:
    """A study behind proxies: one before rank 0's `control` socket, one before the `data` socket of each rank."""

    study: Reception
    control: Proxy
    data: list[Proxy]
    # The launcher's socket is for one thread at a time.
    launching: Lock = field(default_factory=Lock)

    @property
    def struck(self) -> Counter[str]:
        """How often which kind of fault has had an effect."""
        return sum((proxy.struck for proxy in (self.control, *self.data)), Counter())

    def launch(self, simulation: int, attempt: int = 0) -> ConnectionFile:
        """Begin an attempt; returns the connection file of its client ranks, which leads through the proxy."""
        key = KeyPair.make() if self.study.shape.secure else None
        with self.launching:
            file = self.study.launch(simulation, attempt, key)
        return msgspec.structs.replace(file, host=ELSEWHERE, control=(self.control.address,))


@contextmanager
def crossing(
    shape: StudyShape,
    *,
    control: Sequence[Fault] = (),
    data: Sequence[Sequence[Fault]] = ((),),
    if_server_away: Away = Away.WAIT,
    wait_s: float = 20.0,
    draw: random.Random | None = None,
) -> Iterator[Crossing]:
    """Start the receivers of all ranks, and proxies whose connections take these courses.

    `data` has the course of each rank, or one for all. `if_server_away` and `wait_s` are as in study.json.
    """
    with ExitStack() as stack:
        made: list[Crossing] = []

        def stand_between(study: Reception) -> None:
            courses = list(data) * (shape.num_ranks if len(data) == 1 else 1)
            ways = [(study.endpoints[0].control[-1], control)]
            ways += [(it.data[-1], course) for it, course in zip(study.endpoints, courses, strict=True)]
            first, *others = [stack.enter_context(Proxy(address, course, draw=draw)) for address, course in ways]
            study.roster.handshake.facts = msgspec.structs.replace(
                study.roster.facts,
                endpoints=tuple((proxy.address,) for proxy in others),
                if_server_away=if_server_away,
                wait_s=wait_s,
            )
            made.append(Crossing(study=study, control=first, data=others))

        stack.enter_context(reception(shape, before_start=stand_between))
        yield made[0]
