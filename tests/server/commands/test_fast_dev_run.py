"""A server class can be tried before there is any simulation."""

import json
import sys
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.config import StudyConfig, load
from stream_server.server.commands.fast_dev_run import SyntheticSamples, SyntheticSource, fast_dev_run
from stream_server.server.simulations.design import ParameterDesign
from stream_server.server.user.callbacks import Callback
from stream_server.server.user.stream_server import StreamServer


class MeanServer(StreamServer):
    """Learns the mean of x."""

    def prepare_training_attributes(self) -> None:
        self.mean = 0.0

    def process_simulation_data(self, data: Any, config: Any) -> Any:
        return data.parameters, data.fields["x"]

    def training_step(self, batch: Any, batch_idx: int) -> float:
        parameters, x = batch
        assert parameters.shape == (len(x), 2)
        self.mean += 0.1 * float(self.all_reduce(np.mean(x)) - self.mean)
        return float(np.mean((x - self.mean) ** 2))

    def validation_step(self, batch: Any, batch_idx: int) -> float:
        return float(np.mean((batch[1] - self.mean) ** 2))


def study(folder: Path, *, fields: Any = None, **sections: Any) -> StudyConfig:
    (folder / "server.py").write_text("class AnyServer:\n    pass\n")
    content = {
        "study": {"simulations": 4, "time_steps": 5, "fields": fields or {"x": [3, 2]}},
        "parameters": {"bounds": {"a": [0, 1], "b": [1, 2]}},
        "server": {"class": "server.py:AnyServer"},
        "buffer": {"capacity": 100},
        "training": {"batch_size": 4},
        **sections,
    }
    (folder / "study.json").write_text(json.dumps(content))
    return load(folder / "study.json", [])


def test_a_server_that_works_is_shown_with_its_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fast_dev_run(MeanServer, study(tmp_path, validation={"simulations": 1})) == 0
    text = capsys.readouterr().out
    assert "process_simulation_data, 17 calls" in text
    assert "SimulationData(parameters=float64[2], x=float64[3, 2]), StudyConfig" in text
    assert "training_step, 3 calls\n    given     (float32[4, 2], float32[4, 3, 2]), 0" in text
    assert "validation_step, 2 calls" in text
    assert "It works: 3 batches with 12 samples; train/loss" in text


def test_a_validation_of_few_samples_is_tried_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None of the samples that are made up need be among the few that the study would validate."""
    few = {"simulations": 4, "batch_size": 1, "max_batches": 1}
    assert fast_dev_run(MeanServer, study(tmp_path, validation=few)) == 0
    assert "validation_step, 2 calls" in capsys.readouterr().out


def test_only_methods_of_the_user_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class WithoutValidation(MeanServer):
        validation_step = StreamServer.validation_step

    fast_dev_run(WithoutValidation, study(tmp_path))
    text = capsys.readouterr().out
    assert "on_train_start" not in text
    assert "nothing was validated: there is no validation_step" in text


def test_nothing_is_left_in_the_folder_of_the_study(tmp_path: Path) -> None:
    fast_dev_run(MeanServer, study(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.py", "study.json"]


def test_a_server_that_raises_ends_with_its_traceback_and_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Misspelt(MeanServer):
        def process_simulation_data(self, data: Any, config: Any) -> Any:
            return data.fields["temperture"]

    assert fast_dev_run(Misspelt, study(tmp_path)) == 3
    shown = capsys.readouterr()
    assert "It does not work yet: Misspelt.process_simulation_data raised KeyError: 'temperture'" in shown.err
    assert 'return data.fields["temperture"]' in shown.err
    assert "returned  nothing: it raised" in shown.out


def test_a_validation_is_tried_though_the_study_holds_nothing_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Misspelt(MeanServer):
        def validation_step(self, batch: Any, batch_idx: int) -> float:
            return float(batch[2])

    assert fast_dev_run(Misspelt, study(tmp_path)) == 3
    assert "Misspelt.validation_step raised IndexError" in capsys.readouterr().err


class Saving(MeanServer):
    """Has a state from its first batch on."""

    def training_step(self, batch: Any, batch_idx: int) -> float:
        self.seen = self.make_seen()
        return super().training_step(batch, batch_idx)

    def make_seen(self) -> Any:
        return {"batches": 1}

    def state_dict(self) -> dict[str, Any]:
        return {"seen": getattr(self, "seen", None)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_a_checkpoint_is_tried_and_a_start_from_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Lambda(Saving):
        def make_seen(self) -> Any:
            return lambda: 1

    class Missing(Saving):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seen.update(state["seen"])

    class Late(Saving):
        def on_checkpoint(self, path: Path) -> None:
            raise OSError(path.name)

    class Forgetful(Saving):
        def configure_callbacks(self) -> list[Callback]:
            return [Counting()] if self.progress.batches == 0 else []

    class Counting(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"num": 1}

    assert fast_dev_run(Saving, study(tmp_path)) == 0
    for server, said in (
        (Lambda, "Lambda.state_dict().seen is a function"),
        (Missing, "Missing.load_state_dict raised AttributeError: 'Missing' object has no attribute 'seen'"),
        (Late, "Late.on_checkpoint raised OSError: "),
        (Forgetful, "the checkpoint has the state of a callback Counting"),
    ):
        assert fast_dev_run(server, study(tmp_path)) == 3
        assert said in capsys.readouterr().err


def test_every_event_of_a_study_reaches_the_server(tmp_path: Path) -> None:
    heard: list[str] = []

    class Listening(MeanServer):
        def on_train_start(self) -> None:
            heard.append("train")

        def on_simulation_finished(self, simulation_id: int) -> None:
            heard.append(f"finished {simulation_id}")

        def on_reception_end(self) -> None:
            heard.append("reception")

        def on_validation_end(self, metrics: dict[str, float]) -> None:
            heard.append("validation")

        def on_checkpoint(self, path: Path) -> None:
            heard.append("checkpoint")

        def configure_callbacks(self) -> list[Callback]:
            return [Ending()]

    class Ending(Callback):
        def on_train_end(self, server: Any) -> None:
            heard.append("end")

    assert fast_dev_run(Listening, study(tmp_path, validation={"simulations": 1})) == 0
    assert heard == ["train", "finished 1", "finished 2", "reception", "validation", "end", "checkpoint"]


def test_the_events_of_rounds_are_tried_once(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []

    class Listening(MeanServer):
        def on_round_start(self, round_idx: int) -> None:
            heard.append(("start", round_idx))

        def on_validation_end(self, metrics: dict[str, float]) -> None:
            heard.append(("validation", self.progress.rounds))

        def on_round_end(self, round_idx: int) -> None:
            heard.append(("end", round_idx))

    rounds = {"time_steps": 5, "fields": {"x": [3, 2]}, "rounds": {"simulations": 2, "number": 3}}
    assert fast_dev_run(Listening, study(tmp_path, study=rounds, validation={"simulations": 1})) == 0
    assert heard == [("start", 0), ("validation", 0), ("end", 0)]


def test_a_torch_server_is_tried_without_a_process_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch makes this folder when the first optimizer is made.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    import torch

    from stream_server.server.user.torch_server import TorchServer

    class LinearServer(TorchServer):
        def prepare_training_attributes(self) -> Any:
            model = torch.nn.Linear(6, 1)
            return model, torch.optim.SGD(model.parameters(), lr=0.01)

        def process_batch(self, batch: Any, config: Any) -> Any:
            return batch.fields["x"].reshape(len(batch), -1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.model(batch).square().mean()

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            assert not self.model.training
            assert not torch.is_grad_enabled()
            return self.model(batch).square().mean()

    assert fast_dev_run(LinearServer, study(tmp_path, validation={"simulations": 1})) == 0
    assert not torch.distributed.is_initialized()
    assert "process_batch, 5 calls" in capsys.readouterr().out

    class WithoutReturn(LinearServer):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            super().training_step(batch, batch_idx)

    class Skipping(LinearServer):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.skip_batch()

    class PositiveOnly(LinearServer):
        def process_batch(self, batch: Any, config: Any) -> Any:
            return super().process_batch(batch, config) + np.nan

    class Resting(LinearServer):
        def prepare_training_attributes(self) -> Any:
            model, _ = super().prepare_training_attributes()
            return model, torch.optim.SGD(model.parameters(), lr=0.0)

    for server, exit_code, said in (
        (Resting, 3, "It does not work yet: 2 of 2 parameters in optimizers did not change in 3 updates"),
        (WithoutReturn, 3, "It does not work yet: WithoutReturn.training_step must return the mean loss of its batch"),
        (Skipping, 3, "It does not work yet: no update was made of 3 batches"),
        (PositiveOnly, 0, "It runs, and what it learns is not known: the train/loss of made-up samples is nan"),
    ):
        assert fast_dev_run(server, study(tmp_path)) == exit_code
        shown = capsys.readouterr()
        assert said in shown.out + shown.err
        assert "It works" not in shown.out

    class Queue(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            self.state[self.param_groups[0]["params"][0]]["queue"] = deque()

    class Queuing(LinearServer):
        def prepare_training_attributes(self) -> Any:
            model, _ = super().prepare_training_attributes()
            return model, Queue(model.parameters(), lr=0.1)

    class WithATeacher(LinearServer):
        def prepare_training_attributes(self) -> Any:
            self.teacher = torch.nn.Linear(6, 1)
            return super().prepare_training_attributes()

    assert fast_dev_run(WithATeacher, study(tmp_path)) == 0
    assert "\nHowever, 2 parameters require a gradient, but are in no optimizer" in capsys.readouterr().out

    assert fast_dev_run(Queuing, study(tmp_path)) == 3
    assert "what Queuing has learned cannot be saved: the state.optimizers.0.state.0.queue is a deque" in (
        capsys.readouterr().err
    )


def test_made_up_samples_have_the_fields_of_the_study(tmp_path: Path) -> None:
    fields = {
        "x": {"shape": [2], "dtype": "float32"},
        "n": {"shape": [], "dtype": "int16"},
        "z": {"shape": [1], "dtype": "complex128", "optional": True},
    }
    config = study(tmp_path, fields=fields)
    samples = SyntheticSamples(config).store([0, 1], 5).complete_rows()
    assert samples.simulation_ids.tolist() == [0, 0, 0, 1, 1]
    assert samples.time_steps.tolist() == [0, 1, 2, 0, 1]
    assert {name: (dtype.name, shape) for name, (dtype, shape) in samples.fields.items()} == {
        "x": ("float32", (2,)),
        "n": ("int16", ()),
        "z": ("complex128", (1,)),
    }
    assert samples.present["z"].tolist() == [True, False, True, True, False]
    made = next(SyntheticSamples(config).of([0]))[2]
    assert made["n"] in (0, 1)
    assert np.all(made["x"] % 1 != 0)


@pytest.mark.parametrize("window", [None, {"length": 3}])
def test_made_up_windows_have_one_mesh_each_and_others_one_for_each_time_step(tmp_path: Path, window: Any) -> None:
    sections: dict[str, Any] = {"buffer": {"capacity": 100, "watermark": 4}}
    sections |= {} if window is None else {"samples": {"window": window}}
    config = study(tmp_path, fields={"nodes": [{"max": 500}, 2]}, **sections)
    sizes: dict[int, set[int]] = {}
    for simulation, _, sample in islice(SyntheticSamples(config).of([4, 7]), 20):
        sizes.setdefault(simulation, set()).add(len(sample["nodes"]))
    assert set(sizes) == {4, 7}
    assert all(len(of) == 1 if window else len(of) > 5 for of in sizes.values())
    assert sizes[4] != sizes[7]


def test_made_up_simulations_have_the_parameters_of_the_study(tmp_path: Path) -> None:
    config = study(tmp_path, validation={"simulations": 1})
    source = SyntheticSource(config, num_batches=3)
    expected = ParameterDesign(config)
    for simulation in (0, 1, 2):
        assert source.parameters_of(simulation).tolist() == list(expected.parameters(simulation).values())


def test_a_made_up_buffer_is_drained_and_ends(tmp_path: Path) -> None:
    buffer = SyntheticSamples(study(tmp_path)).buffer([3, 4], 6)
    assert buffer.population == 6
    assert set(buffer.contents().simulation_ids.tolist()) == {3, 4}


@pytest.mark.slow
def test_trying_a_plain_server_does_not_load_torch(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from tests.server.commands.test_fast_dev_run import MeanServer, study
from stream_server.server.commands.fast_dev_run import fast_dev_run
assert fast_dev_run(MeanServer, study(Path(sys.argv[1]))) == 0
assert not {"torch", "mpi4py", "zmq"} & set(sys.modules)
"""
    from subprocess import run

    root = Path(__file__).parents[3]
    run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, cwd=root)


def test_gradients_that_the_study_does_not_make_are_not_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Vain(MeanServer):
        def on_gradients(self, model: Any) -> None:
            raise AssertionError("nobody makes them")

    assert fast_dev_run(Vain, study(tmp_path)) == 3
    assert "on_gradients is called where the study makes the gradients, and Vain makes them itself" in (
        capsys.readouterr().err
    )
