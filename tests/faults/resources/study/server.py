"""A learner that fits one number, and can be held in the middle of a step."""

import ctypes
import os

import numpy as np

from stream_server import StreamServer


class MeanServer(StreamServer):
    """The mean of all that was sent. With `user.hold` the first step of a rank waits for a byte in the pipe `hold`.

    It waits in C with Python's lock held, as user code may: nothing else of this process runs but ZeroMQ's threads.
    """

    def prepare_training_attributes(self):
        self.mean = np.zeros(1)

    def process_batch(self, batch, config):
        return batch.fields["u"]

    def training_step(self, batch, batch_idx):
        if self.config.user["hold"] and batch_idx == 0:
            self.hold()
        (gradient,) = self.all_reduce([self.mean - np.mean(batch)])
        self.mean -= 0.1 * gradient
        return float(gradient @ gradient)

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]

    def hold(self):
        path = self.output_dir / "hold"
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR)
        (self.output_dir / "held").touch()
        ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
        os.close(pipe)
