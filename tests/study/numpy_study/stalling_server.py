"""A server of which one method never returns."""

import ctypes
import threading

from server import LinearServer

# pthread_mutex_lock goes on after a signal; through CDLL it does not hold the lock of the interpreter.
C = ctypes.CDLL(None)


def block(deaf):
    """Wait for ever, as code of Python does or, if `deaf`, as a library that no signal interrupts."""
    if not deaf:
        threading.Event().wait()
    mutex = ctypes.create_string_buffer(64)
    while True:
        C.pthread_mutex_lock(mutex)


class StallingServer(LinearServer):
    """Blocks in the method that `user.stall` names, on rank `user.rank`; `user.deaf` says how."""

    def prepare_training_attributes(self):
        super().prepare_training_attributes()
        self.block_if_asked("prepare_training_attributes")

    def training_step(self, batch, batch_idx):
        if batch_idx > 1:
            self.block_if_asked("training_step")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.block_if_asked("validation_step")
        return super().validation_step(batch, batch_idx)

    def on_train_end(self):
        self.block_if_asked("on_train_end")

    def block_if_asked(self, method):
        started = self.output_dir / "started"
        if self.config.user["stall"] == method and self.rank == self.config.user["rank"] and not started.exists():
            if self.config.user.get("once"):
                started.touch()
            print("blocked", flush=True)
            block(self.config.user["deaf"])
