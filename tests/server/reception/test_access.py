"""Which key speaks for which attempt."""

from zmq.utils import z85

from stream_server.messages.client import ATTACHING, Hello, Invalidate
from stream_server.messages.curve import DOMAIN, KeyPair
from stream_server.server.reception.access import CurveAccess


def request(key: str, mechanism: bytes = b"CURVE", domain: str = DOMAIN) -> list[bytes]:
    return [b"1.0", b"7", domain.encode(), b"127.0.0.1", b"", mechanism, z85.decode(key)]


def test_only_keys_on_the_list_are_let_in() -> None:
    server, attaching, client, stranger = (KeyPair.make() for _ in range(4))
    access = CurveAccess(server, attaching=attaching.public)
    access.allow(3, 0, client.public)
    for keys in (server, attaching, client):
        answer = access.answer(request(keys.public))
        assert (answer[1], answer[2], answer[4]) == (b"7", b"200", keys.public.encode())
    assert access.answer(request(stranger.public))[2] == b"400"
    assert access.answer(request(client.public, mechanism=b"NULL"))[2] == b"400"
    assert access.answer(request(client.public, domain="other"))[2] == b"400"
    assert access.answer([b"1.0", b"8"])[1:3] == [b"8", b"500"]


def test_a_known_key_that_must_wait_is_turned_away_for_now_and_a_stranger_for_good() -> None:
    server, client, stranger = (KeyPair.make() for _ in range(3))
    access = CurveAccess(server)
    access.allow(3, 0, client.public)
    penalties = {client.public, stranger.public}
    assert access.answer(request(client.public), penalties.__contains__)[2] == b"300"
    assert access.answer(request(stranger.public), penalties.__contains__)[2] == b"400"
    penalties.clear()
    assert access.answer(request(client.public), penalties.__contains__)[2] == b"200"


def test_a_key_is_void_once_its_simulation_has_another() -> None:
    server, old, new = (KeyPair.make() for _ in range(3))
    access = CurveAccess(server)
    access.allow(3, 0, old.public)
    access.allow(3, 1, new.public)
    assert not access.may_speak(old.public, 3, 0)
    assert access.may_speak(new.public, 3, 1)
    assert not access.may_speak(new.public, 4, 1)
    assert access.answer(request(old.public))[2] == b"400"


def test_the_attaching_key_speaks_only_where_no_other_does() -> None:
    server, attaching, client = (KeyPair.make() for _ in range(3))
    access = CurveAccess(server, attaching=attaching.public)
    access.allow(0, 0, client.public)
    access.allow(1, 0, None)
    assert not access.may_speak(attaching.public, 0, 0)
    assert access.may_speak(attaching.public, 1, 0)


def test_only_the_attaching_key_may_say_that_it_comes_by_itself() -> None:
    server, attaching, client = (KeyPair.make() for _ in range(3))
    access = CurveAccess(server, attaching=attaching.public)
    access.allow(0, 0, client.public)
    guest = Hello(study="s", simulation=0, attempt=ATTACHING, rank=0, num_ranks=1)
    assert access.problem(attaching.public, guest) == ""
    assert access.problem(client.public, guest)
    invalidate = Invalidate(study="s", simulation=0, attempt=0, reason="")
    assert access.problem(client.public, invalidate) == ""
    assert access.problem(attaching.public, invalidate) == "this key does not speak for simulation 0, attempt 0"


def test_a_secret_key_is_not_shown() -> None:
    keys = KeyPair.make()
    assert keys.secret not in repr(keys)
