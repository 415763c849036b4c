"""The continuation of a study: the incarnation of this start, and the checkpoint that it goes on from."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stream_server import errors
from stream_server.buffers import policy_class
from stream_server.config import Difference, StudyConfig, differences
from stream_server.errors import ConfigError, DamagedCheckpoint, StreamServerError
from stream_server.machine.refusals import refusal
from stream_server.messages.routing import Dealing
from stream_server.server.checkpoint.folder import STUDY, CheckpointFolder, Manifest
from stream_server.server.checkpoint.incarnations import begin_incarnation, read_incarnations
from stream_server.server.checkpoint.restore import RankRestore, SavedRank, restore_rank
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.intake.source import REPLAY
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.run import build
from stream_server.server.run.identity import Identity
from stream_server.server.run.output import OutputFolder
from stream_server.storage.disk import read_text, remove_file
from stream_server.storage.plain_state import damage_in, read_state
from stream_server.user_code import digest_of
from stream_server.wording import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuation:
    """The same on all ranks. `base` is the checkpoint that is continued; None: the study begins.

    `retried` are the simulations that are tried again, although they are given up in that checkpoint.
    `has_other_class`: the file with the server class is not what it was then. `earlier` is the resolved study.json that
    counts where the checkpoint has none, if there is one.
    """

    identity: Identity
    checkpoints: CheckpointFolder
    base: Manifest | None
    has_other_class: bool = False
    retried: frozenset[int] = frozenset()
    earlier: Mapping[str, Any] | None = None

    @property
    def base_number(self) -> int:
        """The number of the checkpoint that is continued, 0 when there is none."""
        return 0 if self.base is None else self.base.checkpoint

    @property
    def description(self) -> str:
        """The checkpoint or run that this start continues, in words; "" for the first one."""
        if self.base is not None:
            batches = counted(self.base.batches, "batch")
            other = "; the file with the server class has changed since then" if self.has_other_class else ""
            return f"goes on from checkpoint {self.base_number}, after {batches}{other}"
        return "no checkpoint yet: it begins again" if self.identity.incarnation > 1 else ""

    def is_outdated(self) -> bool:
        """Whether a newer start of the server has taken over, by what the output folder says now."""
        try:
            return read_incarnations(self.checkpoints.folder).newest > self.identity.incarnation
        except (DamagedCheckpoint, OSError):
            return False

    @property
    def folder(self) -> Path:
        return self.checkpoints.path(self.base_number)

    def seed(self, seed: int, stream: int, num_ranks: int) -> tuple[int, ...]:
        """Begins a random stream again, with the rank behind it, where its state cannot be taken back.

        Another checkpoint or another number of ranks begins another stream: none repeats what was drawn before. The
        number of ranks is never 0, since NumPy takes a seed with zeros behind it for the one without them.
        """
        return (seed, stream, self.base_number, num_ranks)

    def study(self) -> dict[str, Any]:
        """The state that all ranks have in common: progress, history, and the roster of rank 0."""
        state: dict[str, Any] = read_state(self.folder / STUDY)
        return state

    def changed_settings(self, state: Mapping[str, Any], config: StudyConfig) -> list[Difference]:
        """The keys of study.json, of those that count, that are not what they were when that state was saved.

        A checkpoint of an earlier version does not have them: then the last start of that version counts.
        """
        with damage_in(STUDY):
            before = json.loads(state["settings"]) if "settings" in state else self.earlier
        found = [] if before is None else differences(before, config)
        return [difference for difference in found if difference.is_told]

    def rank(self, config: StudyConfig, ranks: Ranks, *, is_replay: bool) -> RankRestore:
        """Read what this rank takes back.

        Raises:
            ConfigError: a replay goes on as one, and on as many ranks as before; a study with simulations as such.
        """
        assert self.base is not None
        was_replay = REPLAY in SavedRank(self.folder, 0).state
        if was_replay and not is_replay:
            raise ConfigError("this run is a replay so far: go on with --replay, or start over with --fresh")
        if is_replay and not was_replay:
            raise ConfigError("this run has had simulations so far: go on without --replay, or start over with --fresh")
        if is_replay and self.base.ranks != ranks.size:
            raise ConfigError(
                f"this replay was saved by {counted(self.base.ranks, 'rank')}, but there are {ranks.size}: go on with "
                "as many, or start over with --fresh"
            )
        return restore_rank(
            self.folder,
            incarnation=self.base.incarnation,
            num_saved=self.base.ranks,
            rank=ranks.rank,
            dealing=Dealing(build.routing(config), ranks.size),
            policy=policy_class(config.buffer.policy, config.study_dir),
            seed=self.seed(config.study.data_seed, build.BUFFER_STREAM, ranks.size),
            whole_simulations=config.window is not None,
        )


def find_continuation(
    config: StudyConfig,
    ranks: Ranks,
    folder: OutputFolder,
    choose_retried: Callable[[Path | None], Sequence[int]] = lambda study_state: (),
    earlier: Mapping[str, Any] | None = None,
) -> Continuation:
    """Begin an incarnation that continues the newest whole checkpoint; from here on, older servers may save nothing.

    Collective. `choose_retried` is asked on rank 0 which of the simulations that are given up in the saved state, if
    there is one, to try again.

    Raises:
        NoUsableCheckpoint: there are checkpoints, but none that can be continued.
        ConfigError: the folder cannot be read or written, or `choose_retried` raised it.
    """
    checkpoints = CheckpointFolder(config.checkpoint.dir or folder.checkpoints, keep=config.checkpoint.keep)
    base = find_usable(checkpoints, ranks)

    def begin() -> list[Any]:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        number, batches = (0, 0) if base is None else (base.checkpoint, base.batches)
        chosen = choose_retried(None if base is None else checkpoints.path(number) / STUDY)
        incarnation = begin_incarnation(
            checkpoints.folder, base=number, batches=batches, ranks=ranks.size, started=started, retried=chosen
        )
        checkpoints.sweep()
        incarnations = read_incarnations(checkpoints.folder)
        is_secure = config.network.security == "curve"
        identity = Identity.make(
            folder.path, incarnation=incarnation.incarnation, started=incarnations.starts[0].started, secure=is_secure
        )
        identity.write(folder.identity)
        retried = () if base is None else sorted(incarnations.retried_since(base.incarnation))
        return [identity.incarnation, *retried]

    incarnation, *retried = by_rank_0(ranks, begin)
    return Continuation(
        identity=_read_identity(folder, ranks, incarnation),
        checkpoints=checkpoints,
        base=base,
        has_other_class=base is not None and base.class_digest != digest_of(config.server.class_, config.study_dir),
        retried=frozenset(retried),
        earlier=earlier,
    )


def saved_settings(config: StudyConfig, folder: OutputFolder) -> Any:
    """The resolved study.json with which the newest checkpoint was saved; {} where there is none yet. Rank 0.

    A checkpoint of an earlier version does not have it. Then it is what the first start of this one kept, None so far.
    """
    checkpoints = CheckpointFolder(config.checkpoint.dir or folder.checkpoints)
    numbers = checkpoints.numbers()
    for number in reversed(numbers):
        with suppress(DamagedCheckpoint, OSError), damage_in(STUDY):
            if (settings := read_state(checkpoints.path(number) / STUDY).get("settings")) is not None:
                return json.loads(settings)
            break
    if not numbers:
        return {}
    return json.loads(read_text(folder.study_before)) if folder.study_before.exists() else None


def _read_identity(folder: OutputFolder, ranks: Ranks, incarnation: int) -> Identity:
    """Read what rank 0 has written for all ranks, and remove it. Collective.

    Nothing secret passes through MPI, of whose memory and sockets we do not know how closed they are.
    """
    identity, problem = None, ""
    try:
        identity = Identity.read(folder.identity, incarnation)
    except ConfigError as error:
        problem = str(error)
    problems = ranks.gather(problem)
    problem = ranks.broadcast(problems and next(filter(None, problems), ""))
    by_rank_0(ranks, lambda: remove_file(folder.identity))
    if identity is None or problem:
        raise ConfigError(problem)
    return identity


def by_rank_0(ranks: Ranks, decide: Callable[[], Any]) -> Any:
    """Call `decide` on rank 0 and give its result, or raise its error, on all ranks. Collective.

    Raises:
        ConfigError: a file could not be read or written.
    """
    answer: dict[str, Any] = {}
    if ranks.rank == 0:
        try:
            answer = {"value": decide()}
        except StreamServerError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        except OSError as error:
            answer = {"error": "ConfigError", "text": refusal(error) or str(error)}
    answer = ranks.broadcast(answer)
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["text"])
    return answer["value"]
