"""A disk that is full at any moment: the training goes on, nothing that was good is lost, and room clears it."""

import random

import pytest

from tests.faults.resources import disks
from tests.faults.resources.disk_parts import CASES

PAGES = 64
NUM_CASES = 9


def test_no_part_of_a_server_is_harmed_by_a_disk_that_fills_up() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    pages = sorted(random.Random(seed).sample(range(PAGES), NUM_CASES))
    found = disks.parts(seed, pages)
    assert found.violations == [], f"seed {seed}, pages {pages}"
    assert found.cases == dict.fromkeys(CASES, NUM_CASES)


@pytest.mark.parametrize("num_bytes", [48 << 10, pytest.param(8 << 10, marks=pytest.mark.full)])
def test_a_study_on_a_full_disk_ends_or_waits_in_words_and_goes_on_with_room(num_bytes: int) -> None:
    how, violations = disks.study(num_bytes)
    assert violations == [], how
