"""The thread that writes checkpoints while the training goes on."""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Self

from stream_server.server.checkpoint.generations import Generations
from stream_server.server.checkpoint.manifest import Manifest
from stream_server.server.checkpoint.part import Part, Saved, Writing
from stream_server.server.checkpoint.reasons import cause_of, reason_of

__all__ = ["Committed", "Failed", "Outcome", "Part", "Saved", "Saver"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """The generation is what a restart continues."""

    number: int
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """This rank's part, or the commit, failed; what it had written is removed. `reason` is for people.

    `cause` is the same for all failures of one kind, while `reason` also tells where it was and how much room there is.
    """

    number: int
    error: Exception
    reason: str

    @property
    def cause(self) -> str:
        return cause_of(self.error)


Outcome = Saved | Committed | Failed


class Abandoned(Exception):
    """The save is not wanted any more."""


class Saver:
    """Writes this rank's part of generations, and on rank 0 commits them, in a thread of its own.

    `begin` → `poll` gives `Saved` or `Failed` → once all ranks have `Saved`: `commit` on rank 0 → `poll` gives
    `Committed` or `Failed`; or `discard` on all ranks. Each outcome is given once. All methods belong to the main
    thread and return at once, but for `wait`. Jobs are done in their order, so a save may be begun while the files of
    a discarded one are still being removed.

    A context manager: entering starts the thread. Leaving ends a save that is being written, finishes a commit
    that was asked for, and joins the thread.
    """

    def __init__(self, generations: Generations, *, epoch: int, rank: int) -> None:
        self._generations = generations
        self._epoch = epoch
        self._thread = threading.Thread(target=self._work, name=f"checkpoint-{rank}")
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._num_jobs = 0
        self._expected: object = None
        self._outcome: Outcome | None = None
        self._save = Save(0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._save.unwanted = True
        self._jobs.put(None)
        self._thread.join()

    @property
    def is_busy(self) -> bool:
        """Whether the thread has something to do, be it only to remove what was discarded or pruned."""
        return self._num_jobs > 0

    def path(self, number: int) -> Path:
        """Where generation `number` is once it is committed."""
        return self._generations.path(number)

    def begin(self, number: int, parts: Sequence[Part]) -> None:
        """Begin to write this rank's files of generation `number`."""
        save = self._save = Save(number)
        self._submit(save, lambda: self._write(save, parts))

    def commit(self, number: int, manifest: Manifest, protected: Collection[int] = ()) -> None:
        """Rank 0, once all ranks have `Saved`: make it count, and remove old generations except `protected` ones."""
        assert number == self._save.number == manifest.generation, "another save is under way"
        self._submit(self._save, lambda: self._commit(manifest), lambda: self._prune(protected))

    def discard(self, number: int) -> None:
        """Give the save up, written or not, and remove this rank's files; no outcome is given for it."""
        save = self._save
        if number == save.number:
            save.unwanted = True
            with self._changed:
                self._expected = self._outcome = None
                self._changed.notify_all()
            self._put(save.remove)

    def poll(self) -> Outcome | None:
        """How the job that was asked for last has ended, once; None while it is under way."""
        with self._changed:
            outcome, self._outcome = self._outcome, None
            return outcome

    def wait(self, timeout_s: float) -> bool:
        """Wait until `poll` has something to give, or nothing is under way; whether it has."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcome is not None or self._expected is None, timeout_s)
            return self._outcome is not None

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until the thread has nothing to do; whether it came to that."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num_jobs == 0, timeout_s)

    def _submit(self, save: "Save", job: Callable[[], Outcome], afterwards: Callable[[], None] = lambda: None) -> None:
        assert self._expected is None, "the save before is still under way"
        assert self._outcome is None, "the outcome of the save before was not asked for"
        self._expected = token = object()

        def do() -> None:
            try:
                outcome = job()
            except Exception as error:
                outcome = self._failed(save, error)
            with self._changed:
                if self._expected is token:
                    self._expected, self._outcome = None, outcome
                    self._changed.notify_all()
            if not isinstance(outcome, Failed):
                afterwards()

        self._put(do)

    def _put(self, job: Callable[[], None]) -> None:
        assert self._thread.is_alive(), "the saver was not entered"
        with self._changed:
            self._num_jobs += 1
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._changed:
                self._num_jobs -= 1
                self._changed.notify_all()

    def _write(self, save: "Save", parts: Sequence[Part]) -> Saved:
        folder = self._generations.temporary(save.number, self._epoch)
        save.writing = Writing(folder, before_chunk=save.check)
        return Saved(number=save.number, files=save.writing.run(parts))

    def _commit(self, manifest: Manifest) -> Committed:
        return Committed(number=manifest.generation, path=self._generations.commit(manifest.generation, manifest))

    def _prune(self, protected: Collection[int]) -> None:
        try:
            self._generations.prune(protected)
        except Exception as error:
            _log.warning("old checkpoints could not be removed: %s", reason_of(error, self._generations.folder))

    def _failed(self, save: "Save", error: Exception) -> Failed:
        save.remove()
        if isinstance(error, Abandoned):
            _log.info("checkpoint %d was abandoned", save.number)
        return Failed(number=save.number, error=error, reason=reason_of(error, self._generations.folder))


class Save:
    """One save: `unwanted` is set by the main thread and heeded by the saver's, which alone touches `writing`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.unwanted = False
        self.writing: Writing | None = None

    def check(self) -> None:
        if self.unwanted:
            raise Abandoned(f"checkpoint {self.number} is not wanted any more")

    def remove(self) -> None:
        if self.writing is not None:
            self.writing.remove()
