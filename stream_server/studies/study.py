"""A study in Python: loaded or made of a dict, checked and started."""

import hashlib
import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import ORPHANED, Summary, status_of
from stream_server.config import StudyConfig, load, load_plain
from stream_server.config.loading import override
from stream_server.config.problems import nearest, one_of
from stream_server.errors import ConfigError
from stream_server.launcher.backends.mpirun import require
from stream_server.launcher.supervision.runs import rename_earlier_run
from stream_server.live_parts import SUFFIX, LiveObject, checked, write_parts
from stream_server.machine import run_folder
from stream_server.machine.interpreter import python_command, python_environment
from stream_server.machine.study_lock import RUN_LOCK, holder_of
from stream_server.server.run.output import OutputFolder
from stream_server.server.user.callbacks import Callback
from stream_server.storage.disk import by_own_links, make_folder, open_output, read_text
from stream_server.storage.ownership import private_files
from stream_server.studies.run import Run, console_of
from stream_server.wording import counted

PARTS: Mapping[str, str] = {
    "server": "server",
    **{key: f"training.{key}" for key in ("model", "optimizer", "lr_scheduler", "criterion", "train_dataloader")},
    "callbacks": "training.callbacks",
    "val_dataloader": "validation.val_dataloader",
    "writers": "metrics.writers",
}
"""The arguments of `Study` for classes and objects, and the keys of study.json that they stand for."""
LISTS = ("callbacks", "writers")

LAUNCHER = "stream_server.launcher.supervision.cli"
LOOK_S = 0.05
MARK = "// Written by Study.start() for stream-launcher. It is written again at each start: change the dict instead."

# Launchers that go on when nothing refers to their Run any more; subprocess would warn of them otherwise.
_started: "list[subprocess.Popen[bytes]]" = []


class Study:
    """A study: what study.json says, checked. In a notebook it is shown as its summary.

    `Study.load("study.json")` reads a file; `Study({...}, folder)` takes the same as a dict. Neither starts anything.

    Args:
        plain: what study.json would hold.
        folder: the folder of the study: where relative paths start, and where server class and simulation lie.
        parts: classes and functions of this program in the place of those that `plain` would name: `server`, `model`,
            `optimizer`, `lr_scheduler`, `criterion`, `train_dataloader`, `val_dataloader`, and lists of `callbacks` and
            `writers`. Model, criterion, callbacks and `val_dataloader` may be objects.

    Raises:
        ConfigError: lists every key that is wrong, or if none is, every rule that is broken, each with its path, what
            was found and what to write instead.
    """

    config: StudyConfig

    def __init__(self, plain: Mapping[str, Any], folder: str | Path = ".", **parts: Any) -> None:
        self._plain: dict[str, Any] | None = _as_json(plain)
        self._overrides: list[str] = []
        settings, self._parts = _named(parts, SUFFIX)
        # `load_plain` changes what it is given.
        self.config = load_plain(_as_json(plain), Path(os.path.abspath(folder)), settings)
        if settings:
            # Now its name is known, and so that of the file with the parts.
            override(self._plain, _named(parts, self._parts_file.name)[0])
            self.config = self._load([])
        self.file = self.config.study_dir / f"{self.config.study.name}.study.json"

    @classmethod
    def load(cls, path: str | Path, changes: Mapping[str, Any] | None = None) -> "Study":
        """The study of a study.json, with changes such as `{"training.batch_size": 32}`, as `--set` makes them.

        Raises:
            ConfigError: lists every key that is wrong, or if none is, every rule that is broken.
        """
        study = cls.__new__(cls)
        study._plain, study._parts = None, {}
        study._overrides = [f"{key}={json.dumps(value)}" for key, value in _as_json(changes or {}).items()]
        study.file = Path(os.path.abspath(path))
        study.config = load(path, study._overrides)
        return study

    @property
    def output_dir(self) -> Path:
        """The folder of its runs: `study.output_dir`."""
        return self.config.output_dir

    def check(self, ranks: int | None = None, *, fresh: bool = False) -> Summary:
        """Describe what the study would do and take, as `stream-server --check` prints it. Starts nothing.

        Args:
            ranks: of the server, as for `start`; `server.ranks` by default.
            fresh: as for `start`: whatever the output folder holds, the study would start over.

        Raises:
            ConfigError: `start` would be refused: a class, program or value of the study cannot be used on this
                machine, on this many ranks, or for the run in the output folder.
            UserCodeError: a file of the user raised while it was imported.
        """
        from stream_server.server.commands.check import facts_of, require_start
        from stream_server.studies.trained import user_code_of

        config = self.config if ranks is None else self._load([f"server.ranks={ranks}"])
        require(config)
        parts = checked(self._parts_file, self._parts) if self._parts else nullcontext()
        with parts, user_code_of(config):
            facts = facts_of(config)
        require_start(config, fresh=fresh)
        return Summary(config.study.name, facts)

    def start(
        self,
        ranks: int | None = None,
        *,
        fresh: bool = False,
        retry: Sequence[int] | None = None,
        time_limit: str | None = None,
    ) -> Run:
        """Start it in the background, under a `stream-launcher` of its own, or go on with what was interrupted.

        It returns when the launcher has begun, which takes a second or two. The study goes on when this Python process
        ends, and when its terminal or notebook is closed: `Run.open` finds it again. A study of a dict is written to
        `file`, beside the server class, for the launcher.

        Args:
            ranks: of the server; `server.ranks` by default.
            fresh: rename the output folder of an earlier run and start over.
            retry: go on, and try these simulations again that were given up; all of them if it is empty.
            time_limit: "HH:MM:SS", before which it saves a checkpoint and leaves.

        Raises:
            ConfigError: it runs already, the run in the output folder is that of another study, the launcher refuses
                it, or `file` is not one that `start` may write.
        """
        if fresh and retry is not None:
            raise ConfigError("retry goes on with a study whose simulations were given up: drop it, or fresh")
        require(self.config)
        status = status_of(RunFolder(self.output_dir))
        if status.is_live and status.state != ORPHANED:
            raise ConfigError(
                f"{self.output_dir} is in use: {status.detail} runs the study there. `Run.open` shows and stops it; "
                "or write another study.output_dir"
            )
        if fresh:
            self._write()
            rename_earlier_run(self.config)
        else:
            OutputFolder(self.output_dir).check_start(self.config, resume=False)
            self._write()
        overrides = [*self._overrides, *([] if ranks is None else [f"server.ranks={ranks}"])]
        options = [f"--set={each}" for each in overrides] + (
            [] if time_limit is None else [f"--time-limit={time_limit}"]
        )
        options += [] if retry is None else ["--retry", *map(str, retry)]
        process = self._launch(options)
        run = Run(self.output_dir, process)
        self._await_beginning(process)
        return run

    def __repr__(self) -> str:
        study = self.config.study
        return f"Study {study.name}: {counted(study.simulations, 'simulation')} -> {self.output_dir}"

    def _repr_html_(self) -> str:
        return self._summary()._repr_html_()

    def _summary(self) -> Summary:
        config, study = self.config, self.config.study
        fields = ", ".join(f"{name} ({' × '.join(map(str, field.shape))})" for name, field in study.fields.items())
        simulations = f"{study.simulations} for training, {config.validation.simulations} for validation"
        rows = [
            ("file", str(self.file)),
            ("output", str(self.output_dir)),
            ("simulations", simulations),
            ("fields", fields),
            ("command", shlex.join(config.simulation.command or ())),
            ("server class", f"{config.server.class_}, ranks: {config.server.ranks}"),
            ("buffer", f"{config.buffer.policy}, {config.buffer.capacity:,} samples per rank"),
            ("batch size", f"{config.training.batch_size} per rank"),
        ]
        return Summary(study.name, rows)

    @property
    def _parts_file(self) -> Path:
        # Each run of a sweep keeps its own.
        place = os.path.relpath(self.output_dir, self.config.study_dir)
        digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:8]
        return self.config.study_dir / f"{self.config.study.name}-{digest}{SUFFIX}"

    def _load(self, overrides: list[str]) -> StudyConfig:
        if self._plain is None:
            return load(self.file, [*self._overrides, *overrides])
        return load_plain(_as_json(self._plain), self.config.study_dir, overrides)

    def _write(self) -> None:
        """Put a study that is a dict where the launcher, and each server that it starts again, reads it."""
        if self._plain is None:
            return
        if self.file.exists() and not read_text(self.file, errors="replace", opener=by_own_links).startswith(MARK):
            raise ConfigError(f"{self.file} was not written by Study.start(): move it, or write another study.name")
        if self._parts:
            write_parts(self._parts_file, self._parts)
        plain = self._plain | {"study_dir": str(self.config.study_dir)}
        with _for_result(self.file) as file:
            file.write(f"{MARK}\n{json.dumps(plain, indent=2)}\n".encode())

    def _launch(self, options: list[str]) -> "subprocess.Popen[bytes]":
        _started[:] = [process for process in _started if process.poll() is None]
        console, group = console_of(self.output_dir), self.config.study.share_with
        with private_files(group_reads=group is not None):
            if not self.output_dir.exists():
                run_folder.claim(self.output_dir, group)
            make_folder(console.parent)
            output = _for_result(console)
        with output:
            # A session of its own: neither Ctrl-C nor the end of a terminal or of a kernel reaches it.
            process = subprocess.Popen(
                python_command("-m", LAUNCHER, "--config", str(self.file), *options),
                env=python_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _started.append(process)
        return process

    def _await_beginning(self, process: "subprocess.Popen[bytes]") -> None:
        """Return when the launcher has the lock of the output folder, or has ended as a study ends."""
        lock = self.output_dir / RUN_LOCK
        while (holder := holder_of(lock)) is None or holder.pid != process.pid:
            try:
                exit_code = process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            if exit_code == ConfigError.exit_code:
                raise ConfigError(read_text(console_of(self.output_dir), errors="replace", opener=by_own_links).strip())
            return


def _named(parts: Mapping[str, Any], file: str) -> tuple[list[str], dict[str, Any]]:
    """The settings, as of `--set`, that name these arguments of `Study` in a file; and what it is to hold, by name.

    Raises:
        ConfigError: there is no such argument, or it must be a list.
    """
    settings, live = [], dict[str, Any]()

    def reference(name: str, part: Any) -> Any:
        if isinstance(part, Mapping) and "class" in part:
            return {**part, **reference(name, part["class"])}
        if isinstance(part, str):
            return {"class": part}
        # A module can be called, too, and so can a callback of the user's.
        makes = isinstance(part, type) or not (isinstance(part, Callback) or hasattr(part, "named_parameters"))
        live[name] = part if makes and callable(part) else LiveObject(part)
        return {"class": f"{file}:{name}"}

    for name, part in parts.items():
        if name not in PARTS:
            raise ConfigError(f"Study takes no {name}: write {nearest(name, PARTS) or one_of(PARTS)}")
        if part is None:
            continue
        if name in LISTS:
            if not isinstance(part, list | tuple):
                raise ConfigError(f"{name} of Study must be a list, but is {part!r}: write {name}=[…]")
            items = [_as_json(reference(f"{name}_{place}", item)) for place, item in enumerate(part)]
            settings.append(f"{PARTS[name]}={json.dumps(items)}")
        else:
            whole = _as_json(reference(name, part))
            settings += [f"{PARTS[name]}.{key}={json.dumps(it)}" for key, it in whole.items()]
    return settings, live


def _for_result(path: Path) -> BinaryIO:
    """A file to write, beside files that others may have made.

    Raises:
        ConfigError: it is theirs, or cannot be written.
    """
    try:
        return open(path, "wb", opener=open_output)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def _as_json(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The same value as a JSON file holds it: paths as text, arrays and numbers of NumPy as lists and numbers.

    Raises:
        ConfigError: something in it has no place there.
    """
    try:
        text = json.dumps(dict(plain), default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the study cannot be written as JSON: {error}") from error
    content: dict[str, Any] = json.loads(text)
    content.pop("$schema", None)
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} is no number, text, list or dict")
