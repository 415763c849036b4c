"""When reception ends: once all that came has found room in the buffer, be it long after the last client has left."""

from stream_server.server import events
from tests.server.reception import Crew, StudyShape, reception
from tests.server.test_receiver import simulate


def test_reception_ends_only_when_all_that_waits_has_found_room() -> None:
    with reception(StudyShape(capacity=1, credit=6)) as study:
        study.launch(0)
        crew = Crew()
        crew.start(simulate, study, 0, range(6))
        crew.join()
        study.first.wait_for(events.SimulationFinished)
        study.first.drain()
        assert study.first.drawn == [(0, step) for step in range(6)]
        study.first.wait_for(events.ReceptionEnded)
