"""The state of one server rank's intake: the study's numbers, the current attempts, the ledger and the refusals."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from stream_server.messages.client import (
    FieldSpec,
    Reason,
    Refusal,
    TimeSteps,
)
from stream_server.messages.routing import Dealing
from stream_server.server.intake.attempts import AttemptState, PartialStatics
from stream_server.server.intake.layout import BlockLayout
from stream_server.server.intake.ledger import Ledger

# The blocks of each are compared with those of the others: this many with 40 fields take 1.5 s.
MAX_UNSAID_RANKS = 1024


class IntakeState:
    """The simulations as one server rank knows them. Receiver thread.

    `attempts` are the current ones, by simulation. `credit` is how many steps a simulation may have under way.
    `static_fields` are sent once per simulation, `fields` with each time step. `dtypes` are the types in which both are
    kept: the study's, or else those in which the first simulation sends them. `refused` counts by reason how often
    something was refused. `client_ranks` is how many a simulation may have.
    """

    def __init__(
        self,
        *,
        rank: int,
        dealing: Dealing,
        time_steps: TimeSteps,
        fields: Iterable[FieldSpec],
        study: str,
        incarnation: int,
        credit: int,
        client_ranks: int = MAX_UNSAID_RANKS,
    ) -> None:
        self.rank = rank
        self.dealing = dealing
        self.numbering = time_steps
        specs = {spec.name: spec for spec in fields}
        self.fields = {name: spec for name, spec in specs.items() if not spec.is_static}
        self.static_fields = {name: spec for name, spec in specs.items() if spec.is_static}
        self.study = study
        self.incarnation = incarnation
        self.credit = credit
        self.client_ranks = client_ranks
        self.dtypes = {spec.name: np.dtype(spec.dtype) for spec in specs.values() if spec.dtype}
        self.attempts: dict[int, AttemptState] = {}
        self.ledger = Ledger()
        self.refused: Counter[str] = Counter()

    @property
    def dtypes_known(self) -> bool:
        """The types of all fields of a time step are known, so that the slots can be allocated."""
        return self.dtypes.keys() >= self.fields.keys()

    def begin(self, simulation: int, attempt: int, *, goes_on: bool) -> AttemptState:
        """Make an attempt the current one; `goes_on`: it ran in an earlier incarnation, and repeats nothing known."""
        total = self.numbering.num
        num_expected: int | None = len(self.dealing.share(simulation, self.rank, self.numbering.limit))
        if total is None and num_expected:
            num_expected = None
        begun = self.attempts[simulation] = AttemptState(
            simulation=simulation,
            attempt=attempt,
            entry=self.ledger[simulation],
            layout=BlockLayout(fields=self.fields, num_ranks=1),
            statics=PartialStatics(layout=BlockLayout(fields=self.static_fields, num_ranks=1)),
            num_expected=num_expected,
            total=total,
            num_known=0 if goes_on else None,
        )
        return begun

    def refuse(self, reason: Reason, text: str, sequence: int | None = None) -> Refusal:
        """Make a refusal, and count it."""
        self.refused[reason.name.lower()] += 1
        return Refusal(reason=reason, text=text, sequence=sequence)
