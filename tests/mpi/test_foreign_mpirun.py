"""A study that another MPI's mpirun starts is refused, and told which mpirun to use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launch import IMPLEMENTATIONS, MPICH_PREFIX, OPENMPI_PREFIX, mpirun

STUDY = Path(__file__).parent.parent / "study" / "numpy_study" / "study.json"
PREFIXES = {"mpich": MPICH_PREFIX, "openmpi": OPENMPI_PREFIX}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_mpirun_of_another_mpi_is_refused_with_the_path_of_the_right_one(
    implementation: str, tmp_path: Path
) -> None:
    (other,) = set(IMPLEMENTATIONS) - {implementation}
    script = str(Path(sys.prefix) / "bin" / "stream-server")
    settings = ["--set", f"study.output_dir={json.dumps(str(tmp_path / 'run'))}"]
    launch = mpirun(implementation, 2, [script, "--config", str(STUDY), *settings])
    python = launch.argv.index(str(PREFIXES[implementation] / "bin" / "python"))
    launch.argv[python] = str(PREFIXES[other] / "bin" / "python")
    ended = subprocess.run(launch.argv, env=launch.environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.count("stream-server: this rank was started by the mpirun of") == 1
    assert f"start it with {PREFIXES[other] / 'bin' / 'mpirun'}\n" in ended.stderr
    assert "Abort(" not in ended.stderr
    assert not (tmp_path / "run").exists()
