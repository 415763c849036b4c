"""The fuzzers and their seeds: a short campaign, which `make fuzz` makes longer."""

import os
import subprocess
from pathlib import Path

import pytest

from stream_server.client_api.connection import ConnectionFile
from tests.client_api.test_protocol_page import EXAMPLES, page_bytes

HERE = Path(__file__).parent


def test_the_seeds_of_the_decoder_are_the_examples_of_the_protocol_page() -> None:
    seeds = {path.name: path.read_bytes() for path in (HERE / "corpus" / "replies").iterdir()}
    assert seeds == {name.lower(): page_bytes(name) for name in EXAMPLES}


@pytest.mark.parametrize("path", sorted((HERE / "corpus" / "connection_files").iterdir()), ids=lambda it: it.name)
def test_the_seeds_of_the_parser_are_connection_files(path: Path) -> None:
    assert ConnectionFile.read(path).study == "heat"


@pytest.mark.parametrize("target", ["decode_reply", "parse_connection_file"])
def test_a_few_thousand_inputs_do_not_upset_a_parser(target: str, tmp_path: Path) -> None:
    environment = dict(os.environ) | {"TARGETS": target, "ARTIFACTS": str(tmp_path)}
    command = [HERE / "run.sh", "20000"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith(f"{target}: 20000 inputs, nothing found")
