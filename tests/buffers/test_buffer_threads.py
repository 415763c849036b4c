"""Whoever of the buffer's threads goes on where they may be switched, nothing is lost and nobody sleeps on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.interleaving import play
from tests.support.examples import examples


@pytest.mark.slow
@settings(max_examples=examples(120), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_buffer_keeps_its_promises_in_every_interleaving(seed: int) -> None:
    play(seed)
