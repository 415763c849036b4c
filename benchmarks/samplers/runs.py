"""Runs of a study with a sampler and a seed; one that is done is not repeated, and one that was left goes on."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from benchmarks.samplers.held_out import exported_model, held_out, solver_of, squared_errors
from stream_server.config import StudyConfig, load

CONFIGS = Path(__file__).parents[2] / "configs"
NUM_WORKERS = 2
LOOK_S = 0.2
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run: `settings` are KEY=VALUE of study.json that hold for all runs."""

    study: str
    sampler: str
    seed: int
    num_held_out: int
    settings: Sequence[str]

    @property
    def path(self) -> Path:
        return CONFIGS / self.study / "study.json"

    @property
    def config(self) -> StudyConfig:
        return load(self.path, self.overrides)

    @property
    def overrides(self) -> list[str]:
        """What differs from study.json.

        Of a FIRO buffer each sample is drawn equally often, however fast simulations are: when it is full, they wait
        for the training, and what a sampler hears is never older than what fits in.
        """
        draws = load(self.path, self.settings).training.draws_per_sample
        firo = ["buffer.policy=firo", f"buffer.pseudo_epochs={draws:.0f}", "training.draws_per_sample=null"]
        return [*self.settings, *firo, f"parameters.sampler={self.sampler}", f"study.seed={self.seed}"]

    def path_in(self, folder: Path) -> Path:
        """The file of the result."""
        return folder / self.study / f"{self.sampler}-{self.seed}.json"

    def result(self, folder: Path) -> Result:
        """Run the study, unless `folder` has the result, and apply the model to the held-out trajectories.

        Raises:
            SystemExit: the study failed, or was interrupted; or the result is that of other settings.
        """
        path = self.path_in(folder)
        folder, output = path.parent, path.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            done: Result = json.loads(path.read_text())
            if done["overrides"] != self.overrides or len(done["errors"]) != self.num_held_out:
                raise SystemExit(f"{path} is of other settings: name another folder with --to, or remove it")
            return done
        before_s = _cpu_s()
        if not (output / "model" / "SHA256SUMS").exists():
            self._run(output)
        found = self._evaluated(output, folder) | {"cpu_s": _cpu_s() - before_s}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(path)
        return found

    def _run(self, output: Path) -> None:
        """Run the study to its end, with solvers that attach and stay, so that each starts once."""
        program = str(Path(sys.executable).with_name("stream-server"))
        own = [f"study.output_dir={output.resolve()}", "simulation.command=null", "launcher={}"]
        own.append(f"client.max_attached={NUM_WORKERS}")
        overrides = [f"--set={it}" for it in (*self.overrides, *own)]
        argv = [program, f"--config={self.path}", *overrides]
        with ExitStack() as stack:
            log = stack.enter_context(output.with_suffix(".log").open("ab"))
            started_s = time.time()
            server = stack.enter_context(_process(argv, log))
            connection = output / "connection.json"
            while server.poll() is None and not (connection.exists() and connection.stat().st_mtime >= started_s):
                time.sleep(LOOK_S)
            solver = [sys.executable, str(solver_of(self.config))]
            environment = {"STREAM_CONNECTION": str(connection), **THREADS}
            for _ in range(NUM_WORKERS if server.poll() is None else 0):
                stack.enter_context(_process(solver, log, environment))
            code = server.wait()
        if code:
            raise SystemExit(f"{' '.join(argv)}\nended with {code}: see {output.with_suffix('.log')}")

    def _evaluated(self, output: Path, folder: Path) -> Result:
        report = json.loads((output / "report.json").read_text())
        assert report["balanced"], report["unbalanced"]
        config = self.config
        mse = squared_errors(exported_model(output / "model"), held_out(config, self.num_held_out, folder))
        parameters = np.genfromtxt(output / "parameters.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
        first = next(iter(config.parameters.bounds or {}))
        return {
            "study": self.study,
            "sampler": self.sampler,
            "seed": self.seed,
            "overrides": self.overrides,
            # Of a whole trajectory, in the unit of the fields.
            "errors": np.sqrt(mse.mean(axis=1)).tolist(),
            "errors_by_lead_time": np.sqrt(mse.mean(axis=0)).tolist(),
            "first_parameter": [first, parameters[first][config.validation.simulations :].tolist()],
            "simulations": report["simulations"]["finished"] - config.validation.simulations,
            "batches": report["batches"],
            "draws": report["draws"],
            "wall_s": report["wall_s"],
            "restarts": report["restarts"],
            "warnings": report["warnings"],
            "cores": os.cpu_count(),
        }


@contextmanager
def _process(
    argv: Sequence[str], log: BinaryIO, environment: Mapping[str, str] | None = None
) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that is waited for at the end, and first interrupted if that is an error.

    It has a session of its own, so that Ctrl-C in the terminal reaches it once, from here.
    """
    process = subprocess.Popen(
        argv,
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | dict(environment or {}),
    )
    try:
        yield process
    except BaseException:
        process.send_signal(signal.SIGINT)
        raise
    finally:
        process.wait()


def _cpu_s() -> float:
    """The CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
