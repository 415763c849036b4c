"""The checkpoint from which a start of the server continues."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stream_server.buffers import Fifo
from stream_server.buffers.policy import generator
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, NoUsableCheckpoint
from stream_server.server.checkpoint.continuation import Continuation, by_rank_0, find_continuation, saved_settings
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.checkpoint.incarnations import read_incarnations
from stream_server.server.intake.source import REPLAY, ReceptionSnapshot
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.run.build import BUFFER_STREAM, make_policy
from stream_server.server.run.identity import Identity
from stream_server.server.run.output import OutputFolder
from stream_server.storage import plain_state
from tests.fakes.thread_ranks import Job, ThreadRanks, on_ranks
from tests.support import checkpoint_stores as stores
from tests.support.saved_ranks import SavedStudyRank, save_all
from tests.support.studies import StudyFolder


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "heat")


@pytest.fixture
def config(folder: StudyFolder) -> StudyConfig:
    return folder.load({"validation.simulations": 1})


def output(config: StudyConfig) -> OutputFolder:
    it = OutputFolder(config.output_dir)
    it.path.mkdir(parents=True, exist_ok=True)
    return it


def find(config: StudyConfig, ranks: Any = None) -> Continuation:
    return find_continuation(config, ranks or SoloRanks(), output(config))


def test_a_study_that_begins_is_incarnation_1_and_continues_nothing(config: StudyConfig) -> None:
    found = find(config)
    assert (found.identity.incarnation, found.base, found.base_number) == (1, None, 0)


def test_each_start_is_another_incarnation_of_the_same_study(config: StudyConfig) -> None:
    first, second = find(config), find(config)
    assert second.identity.incarnation == 2
    assert (second.identity.study, second.identity.started) == (first.identity.study, first.identity.started)


def test_a_start_says_what_it_continues(config: StudyConfig) -> None:
    assert find(config).description == ""
    assert find(config).description == "no checkpoint yet: it begins again"
    stores.save(output(config).checkpoints, 2, incarnation=2)
    # The server class of the store is none that there is.
    told = "goes on from checkpoint 2, after 20 batches"
    assert find(config).description == f"{told}; the file with the server class has changed since then"
    assert replace(find(config), has_other_class=False).description == told


def test_a_start_finds_what_study_json_has_changed_since_its_checkpoint(folder: StudyFolder) -> None:
    def resolved(size: int) -> dict[str, Any]:
        return json.loads(json.dumps(folder.load({"training.batch_size": size}).resolved()))  # type: ignore[no-any-return]

    now = folder.load({"training.batch_size": 30, "launcher.max_running": 3})
    # The start before has died without a checkpoint.
    found = replace(find(now), earlier=resolved(30))
    changed = found.changed_settings({"settings": json.dumps(resolved(20))}, now)
    assert [(it.path, it.before, it.now) for it in changed] == [("training.batch_size", 20, 30)]
    assert found.changed_settings({"settings": json.dumps(now.resolved())}, now) == []


def test_of_a_checkpoint_of_an_earlier_version_the_start_before_says_what_study_json_was(folder: StudyFolder) -> None:
    earlier = json.loads(json.dumps(folder.load({"training.batch_size": 20}).resolved()))
    now = folder.load({"training.batch_size": 30})
    assert [it.path for it in replace(find(now), earlier=earlier).changed_settings({}, now)] == ["training.batch_size"]
    assert find(now).changed_settings({}, now) == []


def saved_study(config: StudyConfig, number: int, state: dict[str, Any]) -> None:
    (folder := output(config).checkpoints / f"{number:06}").mkdir(parents=True)
    with (folder / "study.state").open("wb") as file:
        plain_state.encode(state).write(file)


def test_starts_that_die_before_they_save_find_the_same_changes_since_an_earlier_version(folder: StudyFolder) -> None:
    before, now, later = (folder.load({"training.batch_size": size}) for size in (20, 30, 40))
    run = output(before)
    run.prepare(before, resume=False, saved=saved_settings(before, run))
    begun = find(before)
    saved_study(before, 1, {})
    for config in (now, now, later):
        earlier = run.prepare(config, resume=False, saved=saved_settings(config, run))
        found = replace(begun, earlier=earlier).changed_settings({}, config)
        assert [(it.path, it.before) for it in found] == [("training.batch_size", 20)]
    saved_study(later, 2, {"settings": json.dumps(later.resolved())})
    assert saved_settings(now, run)["training"]["batch_size"] == 40


def test_without_a_checkpoint_nothing_was_saved(config: StudyConfig) -> None:
    assert saved_settings(config, output(config)) == {}


def test_each_incarnation_has_keys_of_its_own(config: StudyConfig) -> None:
    first, second = find(config).identity, find(config).identity
    assert first.server_keys != second.server_keys
    assert first.attaching_keys != second.attaching_keys


def test_without_security_clients_have_no_keys_but_an_operator_has(folder: StudyFolder) -> None:
    identity = find(folder.load({"network.security": "none"})).identity
    assert identity.attaching_keys is None
    assert identity.operator_keys != identity.server_keys


def test_the_newest_checkpoint_is_continued(config: StudyConfig) -> None:
    find(config)
    for number in (1, 2):
        stores.save(output(config).checkpoints, number)
    found = find(config)
    assert found.base_number == 2
    assert (found.folder / "study.state").read_bytes() == stores.content(2)["study.state"]


def test_what_is_to_be_tried_again_is_known_to_later_starts_until_a_checkpoint_has_it(config: StudyConfig) -> None:
    def find_again(*retried: int) -> set[int]:
        return set(find_continuation(config, SoloRanks(), output(config), lambda study_state: retried).retried)

    find(config)
    stores.save(output(config).checkpoints, 1, incarnation=1)
    assert find_again(3, 5) == {3, 5}
    assert find_again() == {3, 5}
    assert find_again(7) == {3, 5, 7}
    stores.save(output(config).checkpoints, 2, incarnation=4)
    assert find_again() == set()


def test_no_random_stream_begins_twice_where_states_are_not_taken_back(config: StudyConfig) -> None:
    find(config)
    stores.save(output(config).checkpoints, 1)
    found = find(config)
    assert found.base is not None
    begun = [make_policy(config, rank).state_dict()["random"] for rank in range(8)]
    for number in range(1, 5):
        found = replace(found, base=replace(found.base, checkpoint=number))
        for num_ranks in range(1, 5):
            seed = found.seed(config.study.data_seed, BUFFER_STREAM, num_ranks)
            begun += [dict(generator((*seed, rank)).bit_generator.state) for rank in range(num_ranks)]
    firsts = {state["state"]["state"] for state in begun}
    assert len(firsts) == len(begun) == 8 + 4 * (1 + 2 + 3 + 4)


def test_checkpoints_may_lie_somewhere_else(folder: StudyFolder, tmp_path: Path) -> None:
    config = folder.load({"checkpoint.dir": str(tmp_path / "elsewhere")})
    find(config)
    stores.save(tmp_path / "elsewhere", 1)
    assert find(config).base_number == 1
    assert not output(config).checkpoints.exists()


def test_all_ranks_find_the_same(config: StudyConfig) -> None:
    find(config)
    stores.save(output(config).checkpoints, 1)
    first, second, third = on_ranks(3, lambda ranks: find(config, ranks))
    assert first.base is not None
    assert first.base == second.base == third.base
    assert first.identity == second.identity == third.identity
    assert first.identity.incarnation == 2


def test_when_no_checkpoint_is_whole_all_ranks_say_so_and_no_incarnation_begins(config: StudyConfig) -> None:
    find(config)
    stores.save(output(config).checkpoints, 1)
    (output(config).checkpoints / "000001" / "study.state").write_bytes(b"junk")

    def refused(ranks: ThreadRanks) -> str:
        with pytest.raises(NoUsableCheckpoint) as caught:
            find(config, ranks)
        return str(caught.value)

    first, second = on_ranks(2, refused)
    assert first == second
    assert "study.state" in first
    assert read_incarnations(output(config).checkpoints).newest == 1


def test_an_output_folder_that_cannot_be_written_is_told_on_all_ranks(config: StudyConfig) -> None:
    output(config).checkpoints.write_text("a file where a folder must be")

    def refused(ranks: ThreadRanks) -> str:
        with pytest.raises((ConfigError, NoUsableCheckpoint)) as caught:
            find(config, ranks)
        return str(caught.value)

    first, second = on_ranks(2, refused)
    assert first == second
    assert str(output(config).checkpoints) in first


@pytest.mark.parametrize("error", [ConfigError("no run"), NoUsableCheckpoint("all are damaged")])
def test_what_rank_0_decides_or_raises_all_ranks_do(error: Exception) -> None:
    def decide(ranks: ThreadRanks) -> list[Any]:
        said = [by_rank_0(ranks, lambda: {"rank": ranks.rank})]

        def fail() -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            by_rank_0(ranks, fail)
        return [*said, str(caught.value)]

    assert on_ranks(2, decide) == [[{"rank": 0}, str(error)]] * 2


def test_a_failing_disk_is_a_thing_that_the_user_can_mend() -> None:
    def fail() -> None:
        raise PermissionError(13, "Permission denied", "/runs/heat")

    with pytest.raises(ConfigError, match="Permission denied: '/runs/heat'"):
        by_rank_0(SoloRanks(), fail)


class ReplayingRank(SavedStudyRank):
    """A rank of a study that was replayed."""

    def snapshot(self) -> ReceptionSnapshot:
        taken = super().snapshot()
        taken.state[REPLAY] = {"position": 0}
        return taken


def saved(tmp_path: Path, kind: type[SavedStudyRank]) -> Continuation:
    """Two ranks were saved as checkpoint 1."""
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    ranks = [kind(Fifo(capacity=8), rank, 2) for rank in range(2)]
    for step in range(4):
        ranks[(1 + step) % 2].receive((1, step))
    save_all(ranks, checkpoints.path(1))
    return Continuation(
        identity=Identity.make(tmp_path, incarnation=2, started="", secure=False),
        checkpoints=checkpoints,
        base=stores.manifest_of(1, {}),
    )


def as_rank(rank: int, num_ranks: int) -> ThreadRanks:
    return ThreadRanks(Job(num_ranks), rank)


def test_a_rank_takes_back_its_own_part(config: StudyConfig, tmp_path: Path) -> None:
    restored = saved(tmp_path, SavedStudyRank).rank(config, as_rank(1, 2), is_replay=False)
    assert restored.is_own
    assert restored.buffer["time_steps"].tolist() == [0, 2]


def test_on_another_number_of_ranks_each_takes_its_share(folder: StudyFolder, tmp_path: Path) -> None:
    config = folder.load({"validation.simulations": 1, "buffer.policy": "fifo"})
    continuation = saved(tmp_path, SavedStudyRank)
    restored = [continuation.rank(config, as_rank(rank, 3), is_replay=False) for rank in range(3)]
    assert not any(it.is_own for it in restored)
    assert sorted(step for it in restored for step in it.buffer["time_steps"].tolist()) == [0, 1, 2, 3]


def test_a_replay_goes_on_as_one(config: StudyConfig, tmp_path: Path) -> None:
    continuation = saved(tmp_path, ReplayingRank)
    assert continuation.rank(config, as_rank(0, 2), is_replay=True).is_own
    with pytest.raises(ConfigError, match="this run is a replay so far: go on with --replay"):
        continuation.rank(config, as_rank(0, 2), is_replay=False)


def test_a_study_with_simulations_does_not_go_on_as_a_replay(config: StudyConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this run has had simulations so far: go on without --replay"):
        saved(tmp_path, SavedStudyRank).rank(config, as_rank(0, 2), is_replay=True)


def test_a_replay_goes_on_with_as_many_ranks(config: StudyConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this replay was saved by 2 ranks, but there are 3"):
        saved(tmp_path, ReplayingRank).rank(config, as_rank(0, 3), is_replay=True)
