"""The times at which checkpoints are taken, and the ranks' agreement that one is complete."""

import errno
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from stream_server.errors import StaleIncarnation
from stream_server.server.checkpoint.agreement import CheckpointAgreement, Milestones
from stream_server.server.checkpoint.failed_saves import FIRST_PAUSE_S, LONGEST_PAUSE_S, FailedSaves, noting_space
from stream_server.server.checkpoint.folder import CheckpointFolder, Manifest
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.control_round import SaveState, agree
from stream_server.storage.checksums import FileRecord
from stream_server.storage.folders import PendingFile
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.support.timing import Clock

RECORD = FileRecord(num_bytes=1, xxh3="0" * 32)


class FakeSaver:
    """Ends every job at once, as `script` says: one word for each, "ok" by default.

    A word that begins with "slow" ends the job only once `quicken` is called.
    """

    def __init__(self, rank: int, script: list[str] | None = None) -> None:
        self.rank = rank
        self.script = script or []
        self.began: list[int] = []
        self.milestones: list[int] = []
        self.num_discarded = 0
        self.manifests: list[Manifest] = []
        self.quicken: Callable[[], None] = lambda: None
        self.checkpoints = CheckpointFolder(Path())

    def write(self, number: int, parts: list[PendingFile]) -> Future[dict[str, FileRecord]]:
        self.began.append(number)
        self.milestones += [number for part in parts if part.path == "milestone.txt"]
        return self._job({f"rank-{self.rank}/x": RECORD})

    def commit(self, manifest: Manifest) -> Future[Path]:
        self.manifests.append(manifest)
        return self._job(self.checkpoints.path(manifest.checkpoint))

    def discard(self) -> None:
        self.num_discarded += 1

    def _job(self, result: Any) -> Future[Any]:
        slow, word = (self.script.pop(0) if self.script else "ok").rpartition("slow ")[1:]
        job: Future[Any] = Future()

        def end() -> None:
            if word == "ok":
                job.set_result(result)
                return
            errors = {"stale": StaleIncarnation(word), "a bug": TypeError(word)}
            job.set_exception(errors.get(word) or OSError(word))

        if slow:
            self.quicken = end
        else:
            end()
        return job


class FakeStudy:
    """A study of which something new can always be saved, unless `num` stands still."""

    def __init__(self) -> None:
        self.num = 0
        self.has_pressure = False
        self.safe: list[int] = []
        self.batches: list[int] = []

    def capture(self) -> list[PendingFile]:
        self.batches.append(self.num)
        return []

    def manifest(self, checkpoint: int, files: Mapping[str, FileRecord]) -> Manifest:
        return Manifest(
            checkpoint=checkpoint, incarnation=1, base=0, ranks=1, batches=0, created="", class_digest="", files=files
        )

    def committed(self, checkpoint: int, path: Path) -> None:
        self.safe.append(checkpoint)

    def version(self) -> Any:
        return self.num


class OneRank:
    """Checkpoints of one rank, round by round."""

    def __init__(
        self,
        ranks: Any = None,
        script: list[str] | None = None,
        *,
        batches: int = 0,
        every_batches: int | float | None = None,
        **options: Any,
    ) -> None:
        self.clock = Clock()
        self.study = FakeStudy()
        self.progress = Progress()
        self.progress.batches = batches
        self.is_boundary = True
        self.ranks = ranks or SoloRanks()
        self.saver = FakeSaver(self.ranks.rank, script)
        milestones = options.pop("milestones", None)
        settings: dict[str, Any] = {"every_s": 300.0, "newest": 0} | options
        self.checkpoints = CheckpointAgreement(
            ranks=self.ranks,
            saver=self.saver,  # type: ignore[arg-type]
            study=self.study,  # type: ignore[arg-type]
            schedule=Schedule(every=every_batches),
            progress=self.progress,
            milestones=None if milestones is None else Milestones(milestones, self.progress),
            at_boundary=lambda: self.is_boundary,
            phases=Phases(),
            clock=self.clock,
            **settings,
        )

    def round(self) -> SaveState:
        """One round of this rank alone, and what is due after it."""
        said = self.checkpoints.state()
        self.checkpoints.advance(said)
        if self.checkpoints.due:
            self.checkpoints.take()
        return said

    def step(self, num: int = 1) -> None:
        self.progress.batches += num
        self.study.num += num


def test_nothing_is_saved_before_it_is_due() -> None:
    one = OneRank(every_batches=3)
    one.step(2)
    assert not any(one.round())


def test_a_number_of_batches_makes_one_due_and_three_rounds_make_it_safe() -> None:
    one = OneRank(every_batches=3, newest=7)
    one.step(3)
    assert [one.round() for _ in range(3)] == [SaveState(wanted=1), SaveState(written=1), SaveState(committed=1)]
    assert one.study.safe == [8]
    assert one.checkpoints.newest == 8


def test_they_are_due_at_multiples_and_at_parts_of_the_run_whenever_time_made_others_due() -> None:
    for every in (4, 0.2):
        one, taken = OneRank(every_batches=every, every_s=10.0), []
        one.progress.length = TrainingLength(samples=20, draws=20)
        for batch in range(1, 14):
            one.clock.now = 10.0 * (batch >= 6)
            one.progress.draws += 1
            one.step()
            if sum(one.round().wanted for _ in range(3)):
                taken.append(batch)
        assert taken == [4, 6, 8, 12]


def test_after_a_restart_the_next_one_is_due_at_the_next_multiple() -> None:
    restored = OneRank(newest=4, batches=8, every_batches=4)
    restored.step()
    assert not any(restored.round())
    restored.step(3)
    assert restored.round().wanted


def test_time_makes_one_due() -> None:
    one = OneRank(every_s=10.0)
    one.step()
    one.clock.now = 10.0
    assert one.round().wanted


def test_the_first_checkpoint_of_a_study_comes_after_a_minute_and_the_others_as_they_are_asked_for() -> None:
    one = OneRank(every_s=300.0)
    taken = []
    for second in range(800):
        one.clock.now = float(second)
        one.step()
        if one.round().wanted:
            taken.append(second)
    assert taken == [60, 360, 660]
    later = OneRank(every_s=300.0, newest=4)
    later.step()
    later.clock.now = 299.0
    assert not any(later.round())


def test_what_did_not_change_is_not_saved_again() -> None:
    one = OneRank(every_s=10.0)
    one.step()
    one.clock.now = 10.0
    for _ in range(3):
        one.round()
    one.clock.now = 100.0
    assert not any(one.round())
    one.study.num += 1
    assert one.round().wanted


def test_pressure_makes_one_due_but_leaves_ten_times_its_length_between_two() -> None:
    one = OneRank()
    one.step()
    one.study.has_pressure = True
    one.round()
    one.clock.now = 2.0
    one.round()
    one.round()
    assert one.study.safe == [1]
    one.step()
    one.clock.now = 19.0
    assert not any(one.round())
    one.clock.now = 21.0
    assert one.round().wanted


def test_one_that_is_due_waits_for_the_end_of_an_accumulation() -> None:
    one = OneRank(every_batches=1)
    one.step()
    one.is_boundary = False
    one.round()
    one.round()
    assert one.saver.began == []
    one.is_boundary = True
    one.round()
    assert one.saver.began == [1]


@pytest.mark.parametrize("script", [["disk full"], ["ok", "disk full"]], ids=["writing", "committing"])
def test_a_failure_leaves_the_last_good_one_and_the_next_clears_it(script: list[str]) -> None:
    one = OneRank(every_batches=1, newest=4, script=script)
    one.step()
    for _ in range(len(script) + 1):
        one.round()
    assert one.checkpoints.newest == 4
    assert one.checkpoints.counts.degraded
    assert one.saver.num_discarded == 1
    one.step()
    one.clock.now += FIRST_PAUSE_S
    for _ in range(3):
        one.round()
    assert one.checkpoints.newest == 6
    assert not one.checkpoints.counts.degraded
    assert (one.checkpoints.counts.committed, one.checkpoints.counts.failed) == (1, 1)


def test_after_each_failure_the_next_try_waits_twice_as_long_up_to_a_limit_and_a_success_ends_that() -> None:
    one = OneRank(every_batches=1, script=["disk full"] * 12)
    tried_s = []
    while one.saver.script or not tried_s:
        one.step()
        if one.round().wanted:
            tried_s.append(one.clock.now)
        one.clock.now += 0.25
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried_s)]
    assert pauses[:4] == pytest.approx([1, 2, 4, 8], abs=0.6)
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S, abs=0.6)
    one.round()
    one.clock.now += LONGEST_PAUSE_S
    for _ in range(3):
        one.round()
    one.step()
    assert not one.checkpoints.counts.degraded
    assert one.round().wanted


def test_pressure_does_not_shorten_the_pause_after_a_failure() -> None:
    one = OneRank(script=["disk full"])
    one.study.has_pressure = True
    one.step()
    one.round()
    one.round()
    one.step()
    assert not one.round().wanted
    one.clock.now += FIRST_PAUSE_S
    assert one.round().wanted


def test_the_last_one_is_tried_without_a_pause() -> None:
    one = OneRank(script=["disk full"])
    assert not one.checkpoints.take_last()
    assert one.checkpoints.take_last()


def logged(one: OneRank, num: int, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages that are logged while so many checkpoints are taken."""
    caplog.clear()
    for _ in range(num):
        one.checkpoints.take_last()
    return [record.getMessage() for record in caplog.records]


def test_one_cause_is_one_warning_until_another_or_a_success_follows(caplog: pytest.LogCaptureFixture) -> None:
    one = OneRank(newest=3, script=["disk full"] * 19 + ["disk fails"] * 2)
    assert logged(one, 19, caplog) == [
        "a checkpoint failed: OSError: disk full; checkpoint 3 is still good, training goes on, and the next try "
        "waits 1 s, later ones longer"
    ]
    [other] = logged(one, 2, caplog)
    assert other.startswith("a checkpoint failed: OSError: disk fails;")
    assert logged(one, 1, caplog) == ["checkpoint 25 is committed, after 21 that failed"]
    assert logged(one, 1, caplog) == []
    assert one.checkpoints.warnings == [
        "19 of the checkpoints failed: OSError: disk full",
        "2 of the checkpoints failed: OSError: disk fails",
    ]


def test_ranks_that_fail_by_turns_have_one_cause(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failures = FailedSaves(rank=0, clock=Clock())
    full = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full"), noting_space(tmp_path):
        raise full
    for error in (full, None, full, None, full):
        failures.note(error, newest=3)
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"a checkpoint failed: the disk is full ({tmp_path}: ")
    assert failures.warnings[0].startswith(f"3 of the checkpoints failed: the disk is full ({tmp_path}: ")


def test_a_mistake_of_ours_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    one = OneRank(script=["a bug"])
    one.checkpoints.take_last()
    [record] = caplog.records
    assert record.exc_info is not None


def test_rounds_come_quickly_while_one_is_under_way() -> None:
    one = OneRank(every_batches=1)
    assert one.checkpoints.wait_s == float("inf")
    one.step()
    one.round()
    assert one.checkpoints.wait_s < 0.1


def test_the_last_one_is_committed_on_all_ranks_or_on_none() -> None:
    def run(ranks: ThreadRanks) -> OneRank:
        one = OneRank(ranks, script=["disk full"] if ranks.rank == 1 else None)
        one.step()
        assert not one.checkpoints.take_last()
        assert one.checkpoints.take_last()
        return one

    first, second, third = on_ranks(3, run)
    assert first.study.safe == second.study.safe == third.study.safe == [2]
    assert sorted(first.saver.manifests[0].files) == ["rank-0/x", "rank-1/x", "rank-2/x"]
    assert not second.saver.manifests


def test_a_newer_server_ends_this_one_when_it_commits() -> None:
    one = OneRank(every_batches=1, script=["ok", "stale"])
    one.step()
    one.round()
    one.round()
    with pytest.raises(StaleIncarnation):
        one.round()
    assert one.study.safe == []


def together(one: OneRank) -> SaveState:
    """One round of all ranks; what they said."""
    said = agree(one.ranks, one.checkpoints.state())
    one.checkpoints.advance(said)
    if one.checkpoints.due:
        one.checkpoints.take()
    return said


def test_a_failed_checkpoint_is_given_up_only_when_the_last_rank_is_done_with_its_part() -> None:
    scripts = [["ok"], ["disk full"], ["slow ok"]]

    def run(ranks: ThreadRanks) -> OneRank:
        one = OneRank(ranks, every_batches=1, script=scripts[ranks.rank])
        one.step()
        together(one)
        for _ in range(3):
            assert together(one) == SaveState(written=1, failed=1)
            assert one.saver.num_discarded == 0
        one.saver.quicken()
        assert together(one) == SaveState(written=2, failed=1)
        assert one.saver.num_discarded == 1
        return one

    first, second, third = on_ranks(3, run)
    assert [one.checkpoints.counts.failed for one in (first, second, third)] == [1, 1, 1]
    assert [one.checkpoints.warnings for one in (first, second, third)] == [
        [],
        ["1 of the checkpoints failed: OSError: disk full"],
        [],
    ]
    assert not first.saver.manifests


def test_nothing_is_committed_before_the_last_rank_has_written() -> None:
    def run(ranks: ThreadRanks) -> OneRank:
        one = OneRank(ranks, every_batches=1, script=["slow ok"] if ranks.rank == 1 else None)
        one.step()
        together(one)
        assert [together(one) for _ in range(2)] == [SaveState(written=1)] * 2
        assert one.saver.manifests == []
        one.saver.quicken()
        assert together(one) == SaveState(written=2)
        return one

    first, second = on_ranks(2, run)
    assert (len(first.saver.manifests), len(second.saver.manifests)) == (1, 0)


def test_while_one_is_under_way_no_other_is_begun() -> None:
    one = OneRank(every_batches=1, script=["slow ok"])
    one.step()
    one.round()
    for _ in range(5):
        one.step()
        assert not any(one.round())
    assert one.saver.began == [1]
    one.saver.quicken()
    states = [one.round() for _ in range(3)]
    assert states == [SaveState(written=1), SaveState(committed=1), SaveState(wanted=1)]
    assert one.saver.began == [1, 2]


def test_the_last_one_waits_for_one_that_is_under_way() -> None:
    one = OneRank(every_batches=1, script=["ok"])
    one.step()
    one.round()
    one.step()
    assert one.checkpoints.take_last()
    assert one.study.safe == [1, 2]


def test_one_before_a_validation_is_committed_when_it_returns_and_only_if_batches_are_new() -> None:
    one = OneRank()
    one.step(5)
    one.checkpoints.take_before_validation()
    assert one.study.safe == [1]
    one.study.num += 1
    one.checkpoints.take_before_validation()
    assert one.study.safe == [1]
    one.step()
    one.checkpoints.take_before_validation()
    assert one.study.safe == [1, 2]


def test_one_before_a_validation_waits_for_one_of_the_same_batches_that_is_under_way() -> None:
    one = OneRank(every_batches=1)
    one.step()
    one.round()
    one.checkpoints.take_before_validation()
    assert (one.saver.began, one.study.safe) == ([1], [1])


def test_one_before_a_validation_heeds_the_pause_after_a_failure() -> None:
    one = OneRank(script=["disk full"])
    one.step()
    for _ in range(3):
        one.checkpoints.take_before_validation()
    assert one.saver.began == [1]
    one.clock.now += FIRST_PAUSE_S
    one.checkpoints.take_before_validation()
    assert one.study.safe == [2]


def test_a_restored_study_has_nothing_new_to_save_before_a_validation() -> None:
    restored = OneRank(newest=4, batches=7)
    restored.checkpoints.take_before_validation()
    assert restored.saver.began == []


def with_milestones(script: list[str] | None = None, **schedule: Any) -> tuple[OneRank, Progress]:
    one = OneRank(script=script, every_batches=4, milestones=Schedule(**schedule))
    return one, one.progress


def trained_until(one: OneRank, progress: Progress, batch: int) -> None:
    while progress.batches < batch:
        one.step()
        for _ in range(3):
            one.round()


def test_the_first_checkpoint_after_each_milestone_is_marked_and_made_due() -> None:
    one, progress = with_milestones(every=10, at=[3])
    trained_until(one, progress, 21)
    marked = dict(zip(one.saver.began, one.study.batches, strict=True))
    assert [marked[number] for number in one.saver.milestones] == [3, 10, 20]


def test_if_a_milestone_fails_the_next_checkpoint_is_one() -> None:
    one, progress = with_milestones(["disk full"], at=[3])
    trained_until(one, progress, 4)
    assert one.saver.began == [1]
    one.clock.now += FIRST_PAUSE_S
    trained_until(one, progress, 5)
    assert one.saver.milestones == [1, 2]
    trained_until(one, progress, 11)
    assert (one.saver.milestones, one.study.safe) == ([1, 2], [2, 3])


def test_a_restart_from_a_milestone_makes_no_other_of_the_same_batches() -> None:
    one, progress = with_milestones(every=5)
    trained_until(one, progress, 5)
    other, progress = with_milestones(every=5)
    other.checkpoints.load_state_dict(one.checkpoints.state_dict())
    progress.batches = 5
    trained_until(other, progress, 9)
    assert other.saver.milestones == []
    trained_until(other, progress, 10)
    assert len(other.saver.milestones) == 1


def test_the_last_one_is_taken_in_the_middle_of_an_accumulation_too() -> None:
    one = OneRank()
    one.is_boundary = False
    assert one.checkpoints.take_last()


def test_a_restart_numbers_its_checkpoints_on() -> None:
    one = OneRank(every_batches=1, newest=41)
    assert one.checkpoints.take_last()
    assert (one.saver.began, one.checkpoints.newest) == ([42], 42)


def test_a_number_that_failed_is_not_used_again() -> None:
    one = OneRank(newest=4, script=["disk full"])
    assert not one.checkpoints.take_last()
    assert one.checkpoints.take_last()
    assert (one.saver.began, one.checkpoints.newest) == ([5, 6], 6)
