"""A restart with another study.json: what changed is said, kept with its batch, and trained by from there on."""

import csv
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from tests.support.killing import contents, killed_at
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_here, run_study

BEFORE: dict[str, Any] = {
    "server.class": "noting_server.py:NotingServer",
    "study.simulations": 4,
    "buffer.policy": "firo",
    "buffer.pseudo_epochs": 2,
    "buffer.capacity": 40,
    "buffer.watermark": 20,
    "training.batch_size": 4,
    "checkpoint.every_batches": 3,
    "checkpoint.record": True,
}
NOW = {
    "buffer.capacity": 16,
    "buffer.watermark": 5,
    "training.batch_size": 3,
    "training.clip_norm": 0.5,
    "validation.every_batches": 5,
}
Batches = dict[int, list[list[tuple[int, int]]]]


def batches_of(run: Run) -> Batches:
    """The samples of each batch, rank by rank."""
    batches: Batches = defaultdict(list)
    for file in sorted(run.output_dir.glob("noted-*.json")):
        for number, samples in json.loads(file.read_text()):
            batches[number].append([(simulation, step) for simulation, step in samples])
    return dict(sorted(batches.items()))


def trained_by_hand(run: Run, batches: Batches, changed_at: int) -> dict[str, torch.Tensor]:
    """What plain torch learns of the union of each batch, by the settings of its time."""
    with (run.output_dir / "parameters.csv").open() as file:
        rows = {int(row["simulation"]): (float(row["offset"]), float(row["slope"])) for row in csv.DictReader(file)}
    model = nn.Linear(3, 8)
    nn.init.constant_(model.weight, 0.5)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, of_ranks in batches.items():
        keys = [key for batch in of_ranks for key in batch]
        inputs = np.array([(*rows[simulation], step / 20) for simulation, step in keys], np.float32)
        signals = inputs[:, :1] + inputs[:, 1:2] * (np.arange(8) / 8) + inputs[:, 2:]
        optimizer.zero_grad()
        functional.mse_loss(model(torch.from_numpy(inputs)), torch.from_numpy(signals.astype(np.float32))).backward()
        if number >= changed_at:
            nn.utils.clip_grad_norm_(model.parameters(), NOW["training.clip_norm"])
        optimizer.step()
    return model.state_dict()


def test_a_restart_on_other_ranks_trains_by_what_has_changed_and_tells_it_once(tmp_path: Path) -> None:
    output_dir = tmp_path / "run"
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, output_dir, num_ranks=2, settings=BEFORE)
    before = contents(output_dir)
    refused = run_here(NUMPY_STUDY, output_dir, settings=BEFORE | NOW | {"study.fields.signal": [9], "study.seed": 1})
    assert refused.exit_code == 2
    assert "start afresh: the samples that are in the buffer have that form" in refused.output
    assert "start afresh: weights and simulations that there are were drawn by it" in refused.output
    assert contents(output_dir) == before

    settings = BEFORE | NOW
    changed = killed_at("checkpoint.renamed=kill", NUMPY_STUDY, output_dir, num_ranks=3, settings=settings)
    told = "\ntraining.batch_size 4 → 3, from --set; batches that were drawn before stay as they are\n"
    assert told in changed.output
    done = run_study(NUMPY_STUDY, output_dir, num_ranks=3, settings=settings)
    assert_complete(done, num_simulations=4)
    assert " → " not in done.output.partition("\n  simulations")[0].partition("goes on from checkpoint")[2]

    changes = done.report["changes"]
    assert {each["name"]: each["now"] for each in changes} == NOW
    assert len(changes) == len(NOW)
    assert {each["source"] for each in changes} == {"--set"}
    (changed_at,) = {each["batch"] for each in changes}
    assert 5 < changed_at < len(batches_of(done))
    assert f"from batch {changed_at}: training.clip_norm null → 0.5, from --set" in done.output

    batches = batches_of(done)
    assert [*batches] == [*range(done.report["batches"])]
    drawn = Counter(key for of_ranks in batches.values() for batch in of_ranks for key in batch)
    assert drawn == Counter({(simulation, step): 2 for simulation in range(1, 5) for step in range(20)})
    sizes = [[len(batch) for batch in of_ranks] for of_ranks in batches.values()]
    assert sizes[:changed_at] == [[4, 4]] * changed_at
    # One that was drawn before is as large as it was.
    assert all(max(of_ranks) <= 3 for of_ranks in sizes[changed_at + 1 :])
    assert sizes.count([3, 3, 3]) > 5
    learned = load_file(output_dir / "model" / "model.safetensors")
    for name, values in trained_by_hand(done, batches, changed_at).items():
        torch.testing.assert_close(learned[name], values, rtol=1e-4, atol=1e-5)
    assert all(
        entry["batch"] % 5 == 0 for entry in done.report["validation"] if changed_at < entry["batch"] < len(batches)
    )

    replay = ["--replay", str(output_dir)]
    again = run_here(NUMPY_STUDY, tmp_path / "again", settings=settings | {"training.max_batches": 1}, arguments=replay)
    assert again.exit_code == 0
    assert "restarts have changed the recorded run, and not its replay" in again.report["warnings"][0]
    assert f"from batch {changed_at}: training.batch_size 4 → 3, from --set" in again.report["warnings"][0]


def test_a_bound_on_draws_that_rises_holds_for_the_samples_to_come(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "server.class": "noting_server.py:NotingServer",
        "study.simulations": 4,
        "buffer.policy": "reservoir",
        "buffer.capacity": 24,
        "buffer.watermark": 8,
        "training.batch_size": 2,
        "training.draws_per_sample": 2,
        "training.max_batches": 20,
    }
    first = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert (first.exit_code, first.report["draws"]) == (0, 40)
    settings |= {"training.draws_per_sample": 3, "training.precision": "bf16-mixed", "training.max_batches": None}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert_complete(done, num_simulations=4)
    assert "\ntraining.draws_per_sample 2.0 → 3.0, from --set; it bounds the draws of samples to come\n" in done.output
    # Of the samples that had come each was to be drawn twice: the 20 to 40 of 40 draws, and what the buffer holds.
    assert 3 * 80 - 20 >= done.report["draws"] >= 3 * 80 - (40 + 24)
    drawn = Counter(key for of_ranks in batches_of(done).values() for batch in of_ranks for key in batch)
    assert set(drawn) == {(simulation, step) for simulation in range(1, 5) for step in range(20)}
