"""The fuzzers of the C client and their seeds: a short campaign, which `make campaign NAME=fuzz` makes longer."""

from pathlib import Path

import pytest

from stream_server.messages.connection import ConnectionFile
from tests.faults.fuzz.campaign import Fuzzing
from tests.faults.fuzz.programs import NATIVE, NATIVE_CORPORA
from tests.messages.test_protocol_page import EXAMPLES, page_bytes

NUM_INPUTS = 20_000


def seeds_of(target: str) -> list[Path]:
    """The inputs that a campaign begins with, but for those that once broke something."""
    kept = sorted((NATIVE / "corpus" / NATIVE_CORPORA[target]).iterdir())
    return [path for path in kept if not path.name.startswith("crash-")]


def test_the_seeds_of_the_decoder_are_the_examples_of_the_protocol_page() -> None:
    seeds = {path.name: path.read_bytes() for path in seeds_of("decode_reply")}
    assert seeds == {name.lower(): page_bytes(name) for name in EXAMPLES}


@pytest.mark.parametrize("path", seeds_of("parse_connection_file"), ids=lambda it: it.name)
def test_the_seeds_of_the_parser_are_connection_files(path: Path, tmp_path: Path) -> None:
    private = tmp_path / path.name
    private.touch(mode=0o600)
    private.write_bytes(path.read_bytes())
    assert ConnectionFile.read(private).study == "heat"


@pytest.mark.parametrize("target", NATIVE_CORPORA)
def test_a_few_thousand_inputs_do_not_upset_a_parser(target: str, tmp_path: Path) -> None:
    [outcome] = Fuzzing(targets=(target,), folder=tmp_path, seed=1, runs=NUM_INPUTS).outcomes()
    assert not outcome.told, outcome.told
    assert outcome.num_inputs == NUM_INPUTS
