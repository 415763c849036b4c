"""A buffer policy is one class in one file that study.json names."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stream_server.buffers import Policy
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.commands.check import describe
from stream_server.server.run.build import make_policy
from tests.extending.examples import write_examples
from tests.support.killing import copy_of, killed_at
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_study
from tests.support.studies import StudyFolder

RECENT = "recent.py:Recent"
KILLED = {"checkpoint.every_batches": 1, "buffer.policy": RECENT, "buffer.args": {"half_life": 0.25}}


def made(folder: StudyFolder, changes: dict[str, Any]) -> Policy:
    return make_policy(folder.load({"buffer.policy": RECENT, **changes}), 0)


def test_a_policy_gets_the_settings_that_its_constructor_names_and_its_own_arguments(folder: StudyFolder) -> None:
    policy: Any = made(folder, {"buffer.args": {"half_life": 0.25}, "buffer.watermark": 7})
    assert (policy.capacity, policy._watermark, policy.draws_per_sample) == (2500, 7, None)
    policy.put(range(7))
    assert policy.ready(5) == 5


def test_a_learning_rate_counts_samples_where_the_policy_does_not_tell_the_length(folder: StudyFolder) -> None:
    assert folder.load({"buffer.policy": RECENT}).training.lr_clock == "samples"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"buffer.args": {"halflife": 1}}, 'buffer.args has "halflife", but the arguments of Recent are "half_life"'),
        ({"buffer.args": {"seed": 1}}, 'buffer.args must not have "seed", which is given to Recent anyway'),
        ({"buffer.pseudo_epochs": 2}, "buffer.pseudo_epochs: 2 would be ignored, for Recent takes no pseudo_epochs"),
        ({"training.draws_per_sample": 2}, "2.0 would be ignored, for Recent takes no draws_per_sample"),
        (
            {"buffer.policy": "recent.py:Decent"},
            "buffer.policy must name a class, but recent.py has no Decent: write Recent",
        ),
        ({"buffer.policy": "golden.py:Golden"}, "buffer.policy must name a subclass of stream_server.buffers.Policy"),
    ],
)
def test_what_does_not_fit_is_refused(folder: StudyFolder, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        made(folder, changes)
    assert problem in str(refused.value).replace(f"{folder.path}/", "")


def test_a_built_in_policy_takes_no_arguments(folder: StudyFolder) -> None:
    assert folder.problem({"buffer.policy": "fifo", "buffer.args": {"x": 1}}) == (
        'buffer.args: {"x": 1} would be ignored, since only policies of your own take arguments. Leave it out.'
    )


def test_a_check_looks_at_the_policy(folder: StudyFolder) -> None:
    with pytest.raises(ConfigError, match=r'buffer\.args has "halflife"'):
        describe(folder.load({"buffer.policy": RECENT, "buffer.args": {"halflife": 1}}))


def test_a_value_that_the_policy_refuses_is_told_with_its_name(folder: StudyFolder) -> None:
    with pytest.raises(UserCodeError, match="half_life must be positive, but is 0"):
        made(folder, {"buffer.args": {"half_life": 0}})


@pytest.fixture(scope="module")
def killed_with_recent(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A study with a policy of one's own, killed on two ranks after its third checkpoint; it lies beside the run."""
    folder = tmp_path_factory.mktemp("policies")
    study = shutil.copytree(NUMPY_STUDY.parent, folder / "study") / "study.json"
    write_examples(study.parent)
    return killed_at("checkpoint.renamed=kill@3", study, folder / "run", num_ranks=2, settings=KILLED)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_study_with_a_policy_of_ones_own_goes_on_after_a_kill_and_trains_all(
    killed_with_recent: Run, tmp_path: Path, num_ranks: int
) -> None:
    study = killed_with_recent.output_dir.parent / "study" / "study.json"
    output_dir = copy_of(killed_with_recent, tmp_path)
    done = run_study(study, output_dir, num_ranks=num_ranks, settings=KILLED)
    assert_complete(done, num_simulations=6)
    assert (done.report["restarts"], done.report["ranks"]) == (1, num_ranks)
    assert done.account["trained"] == 120


def test_recent_samples_are_drawn_more_often(folder: StudyFolder) -> None:
    policy = made(folder, {"buffer.args": {"half_life": 0.01}})
    policy.put(range(1000))
    draws = Counter(slot for _ in range(50) for slot in policy.draw(10).slots.tolist())
    assert sum(num for slot, num in draws.items() if slot >= 900) > 400
