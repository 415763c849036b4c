"""The judges of a campaign: what is well passes, and every planted violation is found."""

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.buffers import WindowShape
from stream_server.config import load
from stream_server.server.checkpoint.folder import MANIFEST_FILE, Manifest
from stream_server.server.user.components import load_server_class
from stream_server.storage.checksums import record_of
from tests.faults.chaos.audit import Audit, Committed, Incarnation, Trained, read_audit, read_incarnations
from tests.faults.chaos.campaign import Outcome, round_of
from tests.faults.chaos.evidence import damage, trained_plainly, unfinished_files
from tests.faults.chaos.invariants import Evidence, violations, wrong_ends
from tests.faults.chaos.kills import Kill
from tests.faults.chaos.plan import STUDY, Plan
from tests.faults.chaos.processes import kind_of
from tests.faults.chaos.timeline import owner, replayed, surviving

PLAN = Plan(seed="0/0", num_simulations=2, num_steps=6, every_batches=2)
# Six batches of two samples. Incarnation 2 goes on after batch 2, incarnation 3 after batch 4; each redoes one batch.
INCARNATIONS = (
    Incarnation(number=1, base=0, batches=0),
    Incarnation(number=2, base=1, batches=2),
    Incarnation(number=3, base=2, batches=4),
)
TRAINED_BY = ((1, range(3)), (2, range(2, 5)), (3, range(4, 6)))


def keys_of(batch: int) -> tuple[tuple[int, int], ...]:
    return ((0, batch), (1, batch))


def one(incarnation: int, batch: int, **changes: Any) -> Trained:
    trained = Trained(incarnation=incarnation, rank=0, batch=batch, keys=keys_of(batch), time=10.0 * batch)
    return dataclasses.replace(trained, **changes)


TRAINED = tuple(one(incarnation, batch) for incarnation, batches in TRAINED_BY for batch in batches)
COMMITTED = (
    Committed(incarnation=1, checkpoint=1),
    Committed(incarnation=2, checkpoint=2),
    Committed(incarnation=3, checkpoint=3),
)
REPORT = {
    "exit_code": 0,
    "exit_reason": "finished",
    "message": "",
    "balanced": True,
    "restarts": 2,
    "batches": 6,
    "samples": {"expected": 12, "accepted": 12, "trained": 12, "untrained": 0},
}
GOOD = Evidence(
    plan=PLAN, exit_code=0, report=REPORT, incarnations=INCARNATIONS, audit=Audit(trained=TRAINED, committed=COMMITTED)
)


def trained_with(change: Callable[[Trained], Trained | None], evidence: Evidence = GOOD) -> Evidence:
    """The same, with each part of a batch changed, or dropped."""
    trained = tuple(it for it in map(change, evidence.audit.trained) if it is not None)
    return dataclasses.replace(evidence, audit=dataclasses.replace(evidence.audit, trained=trained))


def reported(**changes: Any) -> Evidence:
    return dataclasses.replace(GOOD, report=REPORT | changes)


def at(incarnation: int, batch: int, keys: tuple[tuple[int, int], ...] | None) -> Callable[[Trained], Trained | None]:
    """Gives one part of a batch other keys, or drops it."""

    def change(trained: Trained) -> Trained | None:
        if (trained.incarnation, trained.batch) != (incarnation, batch):
            return trained
        return None if keys is None else dataclasses.replace(trained, keys=keys)

    return change


def test_a_study_in_which_all_is_well_violates_nothing() -> None:
    assert violations(GOOD) == []


STEERED = dataclasses.replace(
    GOOD,
    plan=dataclasses.replace(PLAN, is_steered=True),
    suggested={0: 0.25, 1: 0.5},
    given=((0, 0.25), (1, 0.5), (1, 0.5)),
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"given": ((0, 0.25), (1, 0.5), (1, 0.75))}, "other parameters in one of their attempts: 1"),
        ({"suggested": {0: 0.25}, "given": ()}, "not that of all simulations: 1"),
        ({"suggested": {0: 0.5, 1: 0.5}, "given": ()}, "several simulations have the same parameters"),
    ],
)
def test_suggestions_are_neither_lost_nor_made_twice(changes: dict[str, Any], words: str) -> None:
    found = violations(dataclasses.replace(STEERED, **changes))
    assert words in " ".join(found)
    assert bool(found) == bool(words)


def test_each_batch_belongs_to_the_last_epoch_that_began_before_it() -> None:
    assert [owner(INCARNATIONS, batch) for batch in range(6)] == [1, 1, 2, 2, 3, 3]
    assert [(it.incarnation, it.batch) for it in surviving(INCARNATIONS, TRAINED)] == [
        *((1, 0), (1, 1), (2, 2), (2, 3)),
        *((3, 4), (3, 5)),
    ]


def test_an_incarnation_that_went_on_from_the_same_checkpoint_takes_everything_over() -> None:
    incarnations = (
        Incarnation(number=1, base=0, batches=0),
        *(Incarnation(number=n, base=1, batches=2) for n in (2, 3)),
    )
    assert [owner(incarnations, batch) for batch in range(4)] == [1, 1, 3, 3]


def test_what_a_restart_redid_is_counted_once_for_all_ranks() -> None:
    both = (*TRAINED, *(dataclasses.replace(it, rank=1, time=it.time + 1) for it in TRAINED))
    assert replayed(INCARNATIONS, both) == [[21.0], [41.0]]


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        pytest.param(
            trained_with(at(2, 3, ((0, 3),))), "1 samples were trained less than 1 times: (1, 3)", id="lost key"
        ),
        pytest.param(
            trained_with(at(3, 5, ((0, 5), (1, 5), (0, 0)))),
            "1 samples were trained more than 1 times: (0, 0)",
            id="repeated key",
        ),
        pytest.param(
            trained_with(at(3, 5, ((0, 5), (1, 5), (2, 0)))),
            "samples that no simulation has sent were trained: (2, 0)",
            id="unknown key",
        ),
        pytest.param(
            trained_with(at(2, 2, None)),
            "batches of the surviving timeline were never trained: 2",
            id="lost batch",
        ),
        pytest.param(reported(batches=5), "batches beyond the last one of the report were trained: 5", id="too many"),
        pytest.param(
            dataclasses.replace(GOOD, exit_code=7), "the exit code of the command is 7 instead of 0", id="exit"
        ),
        pytest.param(reported(exit_code=5), "exit_code is 5 instead of 0", id="reported exit"),
        pytest.param(reported(exit_reason="failed"), "exit_reason is 'failed' instead of 'finished'", id="reason"),
        pytest.param(reported(balanced=False), "balanced is False instead of True", id="balance"),
        pytest.param(reported(restarts=1), "restarts is 1 instead of 2", id="restarts"),
        pytest.param(
            reported(samples=REPORT["samples"] | {"untrained": 1, "trained": 11}),  # type: ignore[operator]
            "samples.untrained is 1 instead of 0",
            id="untrained",
        ),
        pytest.param(dataclasses.replace(GOOD, report={}), "there is no report.json", id="no report"),
        pytest.param(
            dataclasses.replace(
                GOOD, audit=Audit(trained=TRAINED, committed=(Committed(incarnation=1, checkpoint=2),))
            ),
            "incarnation 2 goes on from checkpoint 1, but 2 was committed before",
            id="lost checkpoint",
        ),
        pytest.param(
            dataclasses.replace(
                GOOD, incarnations=(*INCARNATIONS[:2], dataclasses.replace(INCARNATIONS[2], base=0, batches=0))
            ),
            "incarnation 3 goes on from checkpoint 0, the one before from 1",
            id="fork",
        ),
        pytest.param(
            dataclasses.replace(GOOD, incarnations=(*INCARNATIONS[:2], dataclasses.replace(INCARNATIONS[2], number=4))),
            "the incarnations are numbered [1, 2, 4]",
            id="gap",
        ),
        pytest.param(dataclasses.replace(GOOD, leftovers=("left running: 7",)), "left running: 7", id="leftover"),
        pytest.param(dataclasses.replace(GOOD, damage=("checkpoint 3: x",)), "checkpoint 3: x", id="damage"),
    ],
)
def test_a_violation_is_found(evidence: Evidence, found: str) -> None:
    assert [sentence for sentence in violations(evidence) if sentence.startswith(found)]


def test_what_is_trained_while_a_save_goes_on_may_be_redone_too() -> None:
    evidence = dataclasses.replace(GOOD, plan=dataclasses.replace(PLAN, every_batches=0))
    assert violations(evidence) == []


def test_a_restart_that_redoes_more_than_an_interval_is_found() -> None:
    incarnations = (INCARNATIONS[0], Incarnation(number=2, base=0, batches=0))
    plan = dataclasses.replace(PLAN, every_batches=2)
    # Of the four batches one was trained while a save may have gone on.
    trained = (*(one(1, batch) for batch in range(4)), *(one(2, batch) for batch in range(6)))
    evidence = dataclasses.replace(
        GOOD,
        plan=plan,
        incarnations=incarnations,
        audit=Audit(trained=trained, committed=()),
        report=REPORT | {"restarts": 1},
    )
    assert violations(evidence) == ["incarnation 2 redid 4 batches, but 2 lie between two checkpoints"]


def test_a_firo_may_train_a_sample_as_often_as_its_pseudo_epochs() -> None:
    plan = dataclasses.replace(PLAN, policy="firo", pseudo_epochs=2)
    twice = dataclasses.replace(
        trained_with(lambda it: dataclasses.replace(it, keys=it.keys * 2)),
        plan=plan,
    )
    assert violations(twice) == []
    once = dataclasses.replace(GOOD, plan=plan)
    assert violations(once)[0].startswith("12 samples were trained less than 2 times")


def test_a_reservoir_may_train_a_sample_any_number_of_times_but_not_never() -> None:
    plan = dataclasses.replace(PLAN, policy="reservoir")
    more = trained_with(at(3, 5, (*keys_of(5), *keys_of(0) * 7)))
    assert violations(dataclasses.replace(more, plan=plan)) == []
    less = trained_with(at(3, 5, keys_of(5)[:1]))
    assert violations(dataclasses.replace(less, plan=plan)) == ["1 samples were trained less than 1 times: (1, 5)"]


def test_the_last_line_of_a_killed_process_may_be_incomplete(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    file = tmp_path / "audit" / "incarnation-1-rank-0-77.jsonl"
    file.write_text(
        '{"batch": 0, "keys": [[0, 1]], "time": 5.0}\n{"committed": "000003", "time": 6.0}\n{"batch": 1, "ke'
    )
    assert read_audit(tmp_path) == Audit(
        trained=(Trained(incarnation=1, rank=0, batch=0, keys=((0, 1),), time=5.0),),
        committed=(Committed(incarnation=1, checkpoint=3),),
    )
    assert read_incarnations(tmp_path) == ()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A whole one, of a single file."""
    folder = tmp_path / "000001"
    (folder / "rank-0").mkdir(parents=True)
    file = folder / "rank-0" / "slots"
    file.write_bytes(b"rows")
    counts = {"checkpoint": 1, "incarnation": 1, "base": 0, "ranks": 1, "batches": 2}
    manifest = Manifest(**counts, created="now", class_digest="", files={"rank-0/slots": record_of(file)})
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    return folder


def test_a_whole_checkpoint_has_no_damage(checkpoint: Path) -> None:
    assert list(damage(checkpoint.parent)) == []


def test_a_damaged_checkpoint_is_noticed(checkpoint: Path) -> None:
    file = checkpoint / "rank-0" / "slots"
    file.write_bytes(b"rowz")
    (checkpoint / "rank-0" / "more").write_bytes(b"")
    assert list(damage(checkpoint.parent)) == [
        "checkpoint 000001: rank-0/more is not in the manifest",
        "checkpoint 000001: rank-0/slots is not what was saved",
    ]
    file.unlink()
    assert "checkpoint 000001: rank-0/slots is missing" in list(damage(checkpoint.parent))
    (checkpoint / MANIFEST_FILE).unlink()
    assert "manifest.json" in next(damage(checkpoint.parent))


def test_a_study_without_a_checkpoint_and_unfinished_files_are_noticed(tmp_path: Path) -> None:
    for name in ("000001", "000001.old", "000002.incarnation-3.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert list(damage(tmp_path / "nowhere")) == ["no checkpoint is left"]
    assert list(unfinished_files(tmp_path)) == [
        "left in the output folder: checkpoints/000001.old",
        "left in the output folder: checkpoints/000002.incarnation-3.tmp",
    ]


def test_the_server_of_the_study_refuses_the_content_of_another_sample() -> None:
    config = load(STUDY, [])
    server = load_server_class(config)(config)
    batch = np.array([3]), np.array([7]), np.arange(256.0)[None] + (3 * 256 + 7) * 256
    server.mean = np.zeros(1)
    server.training_step(batch, 0)
    with pytest.raises(ArithmeticError, match="time step 8 of simulation 3 holds"):
        server.training_step((batch[0], batch[1] + 1, batch[2]), 0)


def test_the_server_of_the_study_refuses_a_window_of_other_steps() -> None:
    window = {"samples": {"window": {"length": 3, "spacing": 2}}, "buffer.routing": "simulations"}
    config = load(
        STUDY, [f"{key}={json.dumps(value)}" for key, value in (window | {"buffer.policy": "reservoir"}).items()]
    )
    server = load_server_class(config)(config)
    server.mean = np.zeros(1)

    def batch(*steps: int) -> Any:
        waves = np.stack([np.arange(256.0) + (3 * 256 + step) * 256 for step in steps])
        return np.array([3]), np.array([steps]), waves[None]

    server.training_step(batch(7, 9, 11), 0)
    with pytest.raises(ArithmeticError, match=r"a window of simulation 3 has the time steps \[7, 9, 10\]"):
        server.training_step(batch(7, 9, 10), 0)


@pytest.mark.parametrize(
    ("name", "command", "kind"),
    [
        ("python3.11", "/venv/bin/python /venv/bin/stream-launcher --config study.json", "launcher"),
        ("python", "python -m stream_server.launcher.supervision.cli --link x", "launcher"),
        ("mpirun", "/venv/bin/mpirun -n 2 /venv/bin/stream-server --config study.json", "mpirun"),
        ("python", "python -m stream_server.launcher.backends.ranks_here 2 python stream-server", "mpirun"),
        ("hydra_pmi_proxy", "hydra_pmi_proxy --proxy-id 0", "mpirun"),
        ("python", "/venv/bin/python /venv/bin/stream-server --config study.json", "rank"),
        ("python", "python -m stream_server.server.commands.cli --config study.json", "rank"),
        ("python", "python /study/wave.py 0.05", "client"),
        ("sh", "/bin/sh -c exec /folder python /study/wave.py 0.05", "shell"),
        ("sleep", "sleep 1", None),
    ],
)
def test_a_process_is_known_by_its_command(name: str, command: str, kind: str | None) -> None:
    assert kind_of(name, command.split()) == kind


def test_a_model_that_has_learned_something_else_is_told() -> None:
    weights = trained_plainly(surviving(INCARNATIONS, TRAINED))
    others = trained_plainly(TRAINED[:-1])
    assert violations(dataclasses.replace(GOOD, weights=weights, expected_weights=weights)) == []
    found = violations(dataclasses.replace(GOOD, weights=others, expected_weights=weights))
    assert any(text.startswith("0.weight of the exported model is off by up to") for text in found)
    (found,) = violations(dataclasses.replace(GOOD, expected_weights=weights))
    assert found.startswith("the exported model has [] instead of ['0.bias'")


def test_the_plans_of_a_seed_are_always_the_same_and_take_turns_in_their_policies() -> None:
    plans = [Plan.drawn(5, number, num_ranks=2) for number in range(8)]
    assert plans == [Plan.drawn(5, number, num_ranks=2) for number in range(8)]
    assert [plan.policy for plan in plans] == ["fifo", "firo", "reservoir", "reservoir"] * 2
    assert {plan.policy for plan in plans if plan.window is not None} == {"firo", "reservoir"}


def test_the_samples_of_a_plan_with_windows_are_the_windows_whose_steps_all_exist() -> None:
    window = WindowShape(length=3, spacing=2, stride=2)
    plan = Plan(seed="0/0", policy="reservoir", num_simulations=2, num_steps=8, window=window)
    assert plan.keys == {(0, 0), (0, 2), (1, 0), (1, 2)}
    assert plan.num_sent == 16
    right = {"expected": 16, "accepted": 16, "trained": 4, "untrained": 0, "windows": {"made": 4}}
    assert not [*wrong_ends(dataclasses.replace(GOOD, plan=plan, report=REPORT | {"samples": right}))]
    lost = right | {"windows": {"made": 3}}
    found = [*wrong_ends(dataclasses.replace(GOOD, plan=plan, report=REPORT | {"samples": lost}))]
    assert found == ["samples.windows.made is 3 instead of 4: "]


def test_the_summary_counts_kills_by_kind_and_moment() -> None:
    kill = Kill(kind="rank", name="python", pid=7, number=signal.SIGKILL, moment="commit", time=0.0)
    outcome = Outcome(
        number=0,
        plan=PLAN,
        kills=(kill, dataclasses.replace(kill, kind="client", moment="restore")),
        num_incarnations=2,
        replays=(3,),
        violations=("lost",),
        wall_s=1.0,
        output_dir=Path(),
    )
    result = round_of(outcome)
    assert result.cases == {"ranks": 1, "clients": 1}
    assert result.table == {
        ("rank", "all"): 1,
        ("rank", "commit"): 1,
        ("client", "all"): 1,
        ("client", "restore"): 1,
    }
    assert result.violations == ("lost",)
    assert result.text.startswith("study 0 (fifo, 2 ranks): killed 1 ranks, 1 clients; 2 incarnations")
    assert result.again.startswith("--first 0 --kills 2 (00:00:00 SIGKILL python 7 in commit; 00:00:00 SIGKILL python")
