"""Frames that were said before, said again in the clear (as over ipc): nothing enters the stream twice."""

from stream_server.messages.client import Ack, Opened, Ping, Reason, Refusal
from tests.server.reception.test_receiver import data, opening, value, welcome
from tests.support.reception import RawClient, StudyShape, reception


def test_frames_that_are_said_again_are_refused_or_counted_as_duplicates() -> None:
    payload = [value(0, 0).tobytes()]
    with reception(StudyShape()) as study:
        welcome(study)
        place = study.endpoints[0].data[0]
        with RawClient(place) as first, RawClient(place) as second:
            assert isinstance(first.ask(opening()), Opened)
            first.say(data(0, 0), payload)
            while not isinstance(answer := first.ask(Ping()), Ack) or answer.received < 1:
                pass
            # Over the same connection, over another one, and over another one with its opening.
            for client, reason in ((first, Reason.MALFORMED), (second, Reason.NOT_OPEN)):
                client.say(data(0, 0), payload)
                while isinstance(answer := client.hear(), Ack):
                    pass
                assert isinstance(answer, Refusal)
                assert answer.reason is reason
            assert isinstance(second.ask(opening()), Opened)
            second.say(data(0, 0), payload)
            while not isinstance(answer := second.ask(Ping()), Ack) or answer.received < 1:
                pass
        account = study.first.receiver.account()
        assert account.intake[0].accepted == 1
        assert account.duplicates == 1
