"""The targets of the fuzzer, each in short: what is kept, inputs that are hard, random changes to valid ones."""

import random
from pathlib import Path

import pytest

from tests.faults.fuzz.campaign import MOST_BYTES, MOST_FILES, Fuzzing, replace
from tests.faults.fuzz.mutation import hard_inputs, mutated
from tests.faults.fuzz.programs import programs
from tests.faults.fuzz.target import CORPORA, Target, corpus, load, names

SEED = 0
NUM_CHANGED = 300
MOST_RUNS = 1_000_000


def tried(target: Target, data: bytes, what: str) -> None:
    """Run one input; an error names it."""
    try:
        target.run(data)
    except Exception as error:
        error.add_note(f"{what}: {data[:2000]!r}")
        raise


@pytest.fixture(scope="module", params=names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def target(name: str) -> Target:
    """Loaded before a test begins: it makes folders that stay till the end."""
    return load(name)


def test_what_once_broke_a_target_or_reaches_much_of_it_does_not_upset_it(name: str, target: Target) -> None:
    for number, data in enumerate([*target.seeds, *corpus(name)]):
        tried(target, data, f"input {number}")


def test_great_numbers_of_anything_do_not_upset_a_target(target: Target) -> None:
    for number, data in enumerate(() if target.is_script else hard_inputs()):
        tried(target, data, f"hard input {number}")


def test_random_changes_to_valid_inputs_do_not_upset_a_target(name: str, target: Target) -> None:
    chance = random.Random(f"{SEED}/{name}")
    inputs = [*target.seeds, *corpus(name)]
    for number in range(NUM_CHANGED):
        data = mutated(chance.choice(inputs), chance, is_json=target.is_json, max_bytes=target.max_bytes)
        tried(target, data, f"seed {SEED}, change {number}")


def test_a_corpus_is_small(name: str) -> None:
    inputs = corpus(name)
    assert 0 < len(inputs) <= MOST_FILES
    assert sum(map(len, inputs)) <= MOST_BYTES


def test_every_corpus_belongs_to_a_target() -> None:
    assert {folder.name for folder in CORPORA.iterdir()} == set(names())


def test_a_campaign_reports_a_planted_bug_and_keeps_the_input(tmp_path: Path) -> None:
    campaign = Fuzzing(
        targets=("tests.faults.fuzz.planted",), folder=tmp_path, corpora=tmp_path, seed=1, runs=MOST_RUNS
    )
    [outcome] = campaign.outcomes()
    assert "AssertionError: the planted bug" in outcome.told
    assert outcome.found is not None
    assert outcome.found.parent == campaign.programs[0].corpus
    assert outcome.found.read_bytes().startswith(b"bug")
    assert 0 < outcome.num_inputs <= MOST_RUNS


def test_a_better_corpus_replaces_all_but_what_has_a_name(tmp_path: Path) -> None:
    old, better = tmp_path / "old", tmp_path / "better"
    for folder, contents in (
        (old, {"000": b"old", "001": b"old too", "crash-1": b"!"}),
        (better, {"ab": b"22", "cd": b"1"}),
    ):
        folder.mkdir()
        for name, data in contents.items():
            (folder / name).write_bytes(data)
    replace(old, better)
    assert {path.name: path.read_bytes() for path in old.iterdir()} == {"000": b"1", "001": b"22", "crash-1": b"!"}


def test_an_unknown_target_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no target jurnal, only decode_reply, .* journal"):
        programs(("jurnal",), tmp_path)
