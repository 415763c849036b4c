"""The end of reception: once all steps have found room in the buffer, even long after the last client has left."""

from stream_server.server.intake import mailbox
from tests.server.reception.test_receiver import simulate
from tests.support.reception import Crew, StudyShape, reception


def test_reception_ends_only_when_all_that_waits_has_found_room() -> None:
    with reception(StudyShape(capacity=1, credit=6)) as study:
        study.launch(0)
        crew = Crew()
        crew.start(simulate, study, 0, range(6))
        crew.join()
        study.first.wait_for(mailbox.SimulationFinished)
        study.first.drain()
        assert study.first.drawn == [(0, step) for step in range(6)]
        study.first.wait_for(mailbox.ReceptionEnded)
