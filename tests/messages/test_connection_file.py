"""The connection file that the launcher writes is the one that the client reads; neither knows the other."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from stream_server.launcher.simulations.attempt_folders import AttemptFolders
from stream_server.messages.connection import ConnectionFile, Security
from stream_server.messages.curve import KeyPair

CURVE = Security(server_public_key="S" * 40, client_public_key="A" * 40, client_secret_key="a" * 40)


@pytest.mark.parametrize("security", [CURVE, None])
def test_the_launcher_writes_what_the_client_would_write(tmp_path: Path, security: Security | None) -> None:
    study = ConnectionFile(
        study="run",
        incarnation=1,
        host="node",
        control=("ipc:///tmp/x/control-0", "tcp://node:4000"),
        security=security,
    )
    attempts = AttemptFolders(
        command=("solver",), templates=(), environment={}, seed=0, study_dir=tmp_path, output_dir=tmp_path
    )
    keys = None if security is None else KeyPair(public="P" * 40, secret="p" * 40)
    written = attempts.prepare(17, 2, {"x": 0.1}, study, keys).folder / "connection.json"

    own = None if security is None else replace(CURVE, client_public_key="P" * 40, client_secret_key="p" * 40)
    wanted = replace(study, simulation=17, attempt=2, parameters={"x": 0.1}, security=own)
    assert ConnectionFile.read(written) == wanted
    wanted.write(tmp_path / "wanted.json")
    assert json.loads(written.read_text()) == json.loads((tmp_path / "wanted.json").read_text())
    assert written.stat().st_mode == (tmp_path / "wanted.json").stat().st_mode
