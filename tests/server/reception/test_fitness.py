"""A sample with a value that is not finite is rejected, wherever in it that value is."""

import numpy as np
import pytest

from stream_server.messages.client import FieldSpec, TimeSteps
from stream_server.server.intake import mailbox
from tests.support.reception import Crew, Reception, StudyShape, reception

FIELDS = ("u", "v")
NUM_RANKS = 2
SHAPE = StudyShape(
    fields=tuple(FieldSpec(name=name, shape=(2 * NUM_RANKS,), dtype="<f8") for name in FIELDS),
    time_steps=TimeSteps(num=3),
)


def send_all(study: Reception, rank: int, bad: tuple[str, int]) -> None:
    """Send this client rank's half of each field of 3 steps, of which step 1 has NaN in one half of one field."""
    with study.run(0, rank=rank, num_ranks=NUM_RANKS) as run:
        for step in range(3):
            halves = {name: np.full(2, float(step)) for name in FIELDS}
            if step == 1 and rank == bad[1]:
                halves[bad[0]][1] = np.nan
            assert run.send(step, **halves)


@pytest.mark.parametrize("rank", range(NUM_RANKS))
@pytest.mark.parametrize("field", FIELDS)
def test_nan_in_any_field_of_any_client_rank_rejects_the_whole_sample(field: str, rank: int) -> None:
    with reception(SHAPE) as study:
        crew = Crew()
        crew.start(study.first.drain)
        study.launch(0)
        for each in range(NUM_RANKS):
            crew.start(send_all, study, each, (field, rank))
        crew.join()
        study.first.wait_for(mailbox.ReceptionEnded)
        assert sorted(study.first.drawn) == [(0, 0), (0, 2)]
        assert study.first.receiver.account().intake[0].rejected == {"nonfinite": 1}
