"""A run of a study: asked, stopped and read from Python."""

import math
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_server.analysis import live
from stream_server.analysis.export import table
from stream_server.analysis.follow import last_lines, newest_log, server_logs
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import RunStatus, status_of
from stream_server.analysis.runs import the_run
from stream_server.errors import NotRunning
from stream_server.studies.notebook import Pictures, changeable_output, frame, pictures_of

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]
    from torch import nn

    from stream_server.server.user.stream_server import StreamServer

ANSWER_S = 10.0
SHOWN_S = 2.0
STOP_S = 60.0
LOOK_S = 0.2
SHOW_EVERY_S = 1.0
END_S = 30.0
NUM_LINES = 20


class Run:
    """A run, live or dead. `Study.start` gives one, and `Run.open` one that anybody else has started.

    It keeps nothing but the path: every call asks the run, or reads its files, again. A run does not end with this
    object, nor with the Python process that started it. In a notebook it is shown as its status.
    """

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.folder = RunFolder(folder)
        self._process = process

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Find the run in an output folder, or the one of a study of which `path` is the folder or the study.json.

        Raises:
            NotRunning: there is none.
        """
        return cls(the_run(Path(path)).path)

    @property
    def path(self) -> Path:
        """The output folder."""
        return self.folder.path

    @property
    def status(self) -> RunStatus:
        """Status now: a live run is asked, and files tell of any other one.

        While its server is started again there is nobody to ask: after 10 s files tell then, too.
        """
        return self._status(ANSWER_S)

    def wait(self, timeout_s: float | None = None) -> RunStatus:
        """Wait for its end, or for so long; returns the status, which says how it ended, or that it goes on.

        A notebook shows the status below the cell meanwhile, updated each second.

        Nothing is raised if the study fails: the status has its exit code, the reason, and the last lines of its log.
        An interrupt (Ctrl-C, the stop button of a notebook) ends the wait alone: the study goes on.
        """
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        show_at = time.monotonic()
        with changeable_output() as show:
            while self._runs() and (left_s := _left_s(give_up_at)) > 0:
                if show is not None and time.monotonic() >= show_at:
                    show(self._status(min(SHOWN_S, left_s)))
                    show_at = time.monotonic() + SHOW_EVERY_S
                self._wait_for(min(LOOK_S, left_s))
        return self.status

    def stop(self, *, finish: bool = False, timeout_s: float = STOP_S) -> str:
        """Tell it to save a checkpoint and leave, or to `finish`; returns what it says to that. `wait` for its end.

        With `finish` no simulation is started any more; what the running ones bring is trained, and the study ends as
        ever. Otherwise the same study goes on when it is started again.

        Raises:
            NotRunning: it is not running, or its server, which may only be starting, did not answer in time.
        """
        return live.stop(self.folder, timeout_s, finish=finish)

    def simulations(self) -> "DataFrame":
        """The simulations by their numbers: parameters, state, attempts, seconds, received time steps, reason.

        Raises:
            NotRunning: it is live, and did not answer in time.
            ConfigError: pandas is not installed.
        """
        rows = [_row(asdict(each)) for each in live.query_simulations(self.folder, ANSWER_S)]
        names = list(rows[0]) if rows else ["simulation", "state", "attempts", "seconds", "received", "reason"]
        return frame({name: [row.get(name) for row in rows] for name in names}, index="simulation")

    def metrics(self, *, wide: bool = True, per_rank: bool = False) -> "DataFrame":
        """The logged metrics so far: one row per batch and a column per name, or one row per value if not `wide`.

        With `per_rank` it is what each rank logged for itself instead of the means over the ranks.

        Raises:
            ConfigError: nothing was logged yet, a file is damaged, or pandas is not installed.
        """
        return frame(table([self.folder], wide=wide, per_rank=per_rank))

    def plot(self, *names: str) -> Pictures:
        """Draw the pictures of these names, or all: loss, throughput, buffer, phases and the like, as far as known.

        Raises:
            ConfigError: nothing was logged yet, there is no such picture, or matplotlib is not installed.
        """
        return pictures_of(self.folder, names)

    def model(self, checkpoint: str | Path | None = None) -> "nn.Module":
        """The trained torch model, with its weights, in evaluation mode; see `server`.

        Raises:
            ConfigError: the study trains no torch model; and see `server`.
        """
        from stream_server.studies.trained import trained_model

        return trained_model(self.folder, checkpoint)

    def server(self, checkpoint: str | Path | None = None) -> "StreamServer":
        """The user's server, made again in this process, as it was in a checkpoint: model, state, normalisation.

        It is the newest checkpoint by default, also of a run that goes on. Others are "best", the best of the best
        models, and paths such as `run.path / "checkpoints/000042"`.

        Raises:
            ConfigError: there is no such model, or the server class is not there any more.
            UserCodeError: the class raised, or makes another model than the saved one.
            DamagedCheckpoint: it is not as it was saved.
        """
        from stream_server.studies.trained import trained_server

        return trained_server(self.folder, checkpoint)

    def log(self, simulation: int | None = None, num_lines: int = NUM_LINES) -> str:
        """The last lines that the study wrote, or those of the newest attempt of one simulation.

        Of a study that was started here it is the output of its stream-launcher. Of any other one it is that or the log
        of rank 0 or of the launcher, whichever was written last.

        Raises:
            NotRunning: there is none.
        """
        if simulation is not None:
            path = newest_log(self.folder, simulation)
        elif self._process is not None:
            path = console_of(self.path)
        else:
            path = self._newest_log()
        if path is None or not path.exists():
            what = "log" if simulation is None else f"output of simulation {simulation}"
            raise NotRunning(f"there is no {what} in {self.path}")
        return last_lines(path, num_lines)

    def __repr__(self) -> str:
        status = status_of(self.folder)
        return f"Run({str(self.path)!r}): {status.state} {status.detail}".rstrip()

    def _repr_html_(self) -> str:
        return self._status(SHOWN_S)._repr_html_()

    def _status(self, timeout_s: float) -> RunStatus:
        exit_code = None if self._process is None else self._process.poll()
        if self._process is not None and exit_code is None and not status_of(self.folder).is_live:
            # It has unlocked the folder, and is about to leave.
            self._wait_for(END_S)
            exit_code = self._process.poll()
        return live.query_status(self.folder, timeout_s).after(exit_code, self._log())

    def _log(self) -> str:
        try:
            return self.log()
        except (NotRunning, OSError):
            return ""

    def _newest_log(self) -> Path | None:
        rank_0 = [log for log in server_logs(self.folder) if log.stem in ("server-0", "launcher")]
        written = [log for log in (console_of(self.path), *rank_0) if log.exists() and log.stat().st_size]
        return max(written, key=lambda log: log.stat().st_mtime, default=None)

    def _runs(self) -> bool:
        return status_of(self.folder).is_live if self._process is None else self._process.poll() is None

    def _wait_for(self, seconds: float) -> None:
        if self._process is None:
            time.sleep(seconds)
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return


def console_of(output_dir: Path) -> Path:
    """The file beside an output folder in which the output of its stream-launcher is, if Python has started it."""
    return output_dir.with_name(f"{output_dir.name}.log")


def _left_s(give_up_at: float | None) -> float:
    return math.inf if give_up_at is None else give_up_at - time.monotonic()


def _row(summary: dict[str, Any]) -> dict[str, Any]:
    parameters = summary.pop("parameters")
    simulation = summary.pop("simulation")
    return {"simulation": simulation, **parameters, **summary}
