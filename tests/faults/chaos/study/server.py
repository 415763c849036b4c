"""Learners that look at the content of every sample and keep a log of all that they have trained."""

import json
import os
import time

import numpy as np
from payload import edges, mesh, particles, volume, wave

from stream_server import StreamServer


class Audited:
    """The log of a server, whatever it learns.

    Each process writes a file of its own in the folder `audit`, a line per batch as soon as it is trained: what a
    killed process has written stays.
    """

    def open_audit(self):
        folder = self.output_dir / "audit"
        folder.mkdir(exist_ok=True)
        name = f"incarnation-{self.read_incarnation()}-rank-{self.rank}-{os.getpid()}.jsonl"
        self.audit = folder / name

    def read_incarnation(self):
        """The number of this start of the server: the last in the list of them."""
        starts = self.output_dir / "checkpoints" / "incarnations.json"
        return json.loads(starts.read_text())["starts"][-1]["incarnation"] if starts.exists() else 1

    def process_batch(self, batch, config):
        if "mesh" in batch.fields:
            for sample in batch.samples():
                check_mixed(sample)
        if "volume" in batch.fields:
            check_volumes(batch)
        return batch.simulation_ids, batch.time_steps, batch.fields["wave"]

    def checked(self, batch):
        """The waves of a batch, which are what the simulations sent; takes `user.step_s` seconds."""
        simulation_ids, time_steps, waves = batch
        num = len(simulation_ids)
        # A window has several time steps, any other sample one.
        for simulation_id, steps, rows in zip(
            simulation_ids.tolist(), time_steps.reshape(num, -1).tolist(), waves.reshape(num, -1, 256), strict=True
        ):
            for time_step, row in zip(steps, rows, strict=True):
                if not np.array_equal(row, wave(simulation_id, time_step)):
                    raise ArithmeticError(f"time step {time_step} of simulation {simulation_id} holds {row}")
            if len(steps) > 1 and steps != self.window_of(steps[0]):
                raise ArithmeticError(f"a window of simulation {simulation_id} has the time steps {steps}")
        time.sleep(self.config.user["step_s"])
        return waves

    def window_of(self, first):
        """The time steps of the window that begins at `first`."""
        window = self.config.window
        return list(range(first, first + window.span + 1, window.spacing))

    def on_batch_end(self, batch, batch_idx, loss):
        self.write({"batch": batch_idx, "keys": keys_of(batch)})

    def on_checkpoint(self, path):
        self.write({"committed": path.name})

    def write(self, line):
        with self.audit.open("a") as file:
            file.write(json.dumps(line | {"time": time.time()}) + "\n")


def check_mixed(sample):
    """Check the static fields of a sample, and the field whose size differs from step to step."""
    simulation_id, is_window = sample.simulation_id, sample.time_steps is not None
    for name, expected in (("mesh", mesh(simulation_id)), ("edges", edges(simulation_id))):
        if not np.array_equal(sample.fields[name], expected):
            raise ArithmeticError(f"a sample of simulation {simulation_id} has the {name} {sample.fields[name]}")
    steps = sample.time_steps.tolist() if is_window else [sample.time_step]
    found = sample.fields["particles"] if is_window else [sample.fields["particles"]]
    for time_step, rows in zip(steps, found, strict=True):
        if not np.array_equal(rows, particles(simulation_id, time_step)):
            raise ArithmeticError(f"time step {time_step} of simulation {simulation_id} has the particles {rows}")


def check_volumes(batch):
    """Check every value of the large field."""
    num = len(batch.simulation_ids)
    for simulation_id, steps, rows in zip(
        batch.simulation_ids.tolist(),
        batch.time_steps.reshape(num, -1).tolist(),
        batch.fields["volume"].reshape(num, -1, 64, 256),
        strict=True,
    ):
        for time_step, found in zip(steps, rows, strict=True):
            if not np.array_equal(found, volume(simulation_id, time_step)):
                raise ArithmeticError(f"time step {time_step} of simulation {simulation_id} has another volume")


class AuditServer(Audited, StreamServer):
    """Fits one number."""

    def prepare_training_attributes(self):
        self.open_audit()
        self.mean = np.zeros(1)

    def training_step(self, batch, batch_idx):
        waves = self.checked(batch)
        (gradient,) = self.all_reduce([self.mean - np.mean(waves)])
        self.mean -= 0.1 * gradient
        return float(gradient @ gradient)

    def state_dict(self):
        return {"mean": self.mean}

    def replicated_state(self):
        return self.state_dict()

    def load_state_dict(self, state):
        self.mean = state["mean"]


def keys_of(batch):
    """The simulation and the first time step of each row."""
    simulation_ids, time_steps, _ = batch
    return list(zip(simulation_ids.tolist(), time_steps.reshape(len(simulation_ids), -1)[:, 0].tolist(), strict=True))
