"""Each fault by itself, between real clients and the receivers of real server ranks."""

import pytest

from tests.faults.network.faults import CLEAR, Close, Fault, Flip, HalfOpen, Reset, Silence, Slow, Way
from tests.faults.network.ordeal import Ordeal, endure

SECURE = pytest.mark.parametrize("secure", [False, True], ids=["plain", "curve"])
PART = 4 * 2**20

BREAKS: dict[str, tuple[Fault, ...]] = {
    "reset": (Reset(after_bytes=2500),),
    "reset while it answers": (Reset(after_bytes=400, way=Way.DOWN),),
    "reset again and again": tuple(Reset(after_bytes=700 * i) for i in range(1, 8)),
    "reset before the first byte": (Reset(after_bytes=0), Reset(after_bytes=0)),
    "closed": (Close(after_bytes=2500),),
    "half open until it heals": (HalfOpen(after_bytes=2500, heals_s=0.3),),
    "nothing arrives until it heals": (Silence(after_bytes=2500, way=Way.UP, heals_s=0.3),),
    "nothing is answered until it heals": (Silence(after_bytes=400, way=Way.DOWN, heals_s=0.3),),
}


@SECURE
@pytest.mark.parametrize("course", BREAKS.values(), ids=BREAKS.keys())
def test_whatever_breaks_every_sample_comes_once_and_nobody_is_started_again(
    course: tuple[Fault, ...], secure: bool
) -> None:
    outcome = endure(Ordeal(secure=secure, data=(course,), num_steps=60))
    assert outcome.violations == ()
    assert outcome.num_attempts == 1
    assert outcome.struck[type(course[0]).__name__] >= 1


@SECURE
@pytest.mark.parametrize(
    "slow",
    [Slow(delay_s=0.01, jitter_s=0.02), Slow(bytes_per_s=40_000, piece_bytes=500), Slow(piece_bytes=1)],
    ids=["delay", "rate", "one byte at a time"],
)
def test_a_slow_network_is_waited_for(slow: Slow, secure: bool) -> None:
    outcome = endure(Ordeal(secure=secure, data=((slow,),), control=(slow,)))
    assert (outcome.violations, outcome.num_attempts) == ((), 1)
    assert outcome.struck == {"Slow": 2}


@SECURE
def test_a_simulation_whose_hello_is_lost_says_it_again(secure: bool) -> None:
    control = (Reset(after_bytes=0), Reset(after_bytes=80), Close(after_bytes=100, way=Way.DOWN))
    outcome = endure(Ordeal(secure=secure, data=((),), control=control))
    assert (outcome.violations, outcome.num_attempts) == ((), 1)
    assert outcome.struck["Reset"] == 2


@SECURE
@pytest.mark.parametrize("num_values", [PART // 8, PART // 8 + 1])
def test_messages_of_the_greatest_length_pass(secure: bool, num_values: int) -> None:
    outcome = endure(Ordeal(secure=secure, data=((),), num_values=num_values, num_steps=3))
    assert (outcome.violations, outcome.num_connections) == ((), 2)


@SECURE
@pytest.mark.parametrize("num_client_ranks", [1, 2])
def test_a_step_that_breaks_off_between_or_within_its_parts_comes_whole(secure: bool, num_client_ranks: int) -> None:
    # Between two of them ZeroMQ connects again, and hears that nothing is open there.
    resets = (Reset(after_bytes=PART // 2), CLEAR, Reset(after_bytes=PART + 2000), CLEAR, Reset(after_bytes=2 * PART))
    outcome = endure(
        Ordeal(secure=secure, data=(resets,), num_client_ranks=num_client_ranks, num_values=PART // 7, num_steps=3)
    )
    assert (outcome.violations, outcome.num_attempts) == ((), 1)
    assert outcome.struck["Reset"] >= 3 - num_client_ranks


@SECURE
def test_client_ranks_that_lose_different_server_ranks_find_together(secure: bool) -> None:
    first = (Reset(after_bytes=2000), Reset(after_bytes=3000), Close(after_bytes=4000))
    second = (HalfOpen(after_bytes=1500, heals_s=0.2), Reset(after_bytes=300, way=Way.DOWN))
    outcome = endure(
        Ordeal(secure=secure, data=(first, second), num_client_ranks=2, num_simulations=2, num_steps=40, credit=2)
    )
    assert (outcome.violations, outcome.num_attempts) == ((), 2)
    assert outcome.struck.total() >= 2


@SECURE
@pytest.mark.parametrize("after_bytes", [800, 2500])
def test_client_ranks_that_keep_step_go_on_whichever_of_them_loses_something(after_bytes: int, secure: bool) -> None:
    lost = (Reset(after_bytes=after_bytes), Reset(after_bytes=2 * after_bytes))
    outcome = endure(
        Ordeal(secure=secure, data=(lost, lost), num_client_ranks=2, in_step=True, num_steps=100, credit=1)
    )
    assert (outcome.violations, outcome.num_attempts) == ((), 1)
    assert outcome.struck["Reset"] >= 1


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("at_byte", [13, 300, 1200])
def test_under_curve_a_flipped_bit_breaks_the_connection_and_is_never_trained(way: Way, at_byte: int) -> None:
    outcome = endure(Ordeal(secure=True, data=((Flip(at_byte=at_byte, bit=2, way=way),),), num_steps=60, credit=2))
    assert outcome.violations == ()
    assert outcome.struck == {"Flip": 1}
    assert outcome.num_connections > 2


@pytest.mark.parametrize("at_byte", [1000, 30_000, 50_123])
def test_without_curve_a_flipped_bit_of_a_field_is_noticed_and_never_trained(at_byte: int) -> None:
    """The rest of a message is protected by TCP's own checksum alone."""
    flip = Flip(at_byte=at_byte, bit=6)
    outcome = endure(Ordeal(secure=False, data=((flip,),), num_values=2000, num_steps=6))
    assert outcome.violations == ()
    assert outcome.num_attempts == 2
    (error,) = outcome.errors
    assert error.endswith("the payload does not fit its checksum: it was changed on the way")
