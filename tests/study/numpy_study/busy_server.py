"""A server whose methods take long."""

import ctypes
import time

from server import LinearServer

# Called through this, the interpreter stays locked: no other thread of Python runs meanwhile.
C = ctypes.PyDLL(None)


class BusyServer(LinearServer):
    """Trains slowly, and hogs the interpreter for `user.validation_s` in each validation."""

    def training_step(self, batch, batch_idx):
        time.sleep(self.config.user["step_s"])
        return super().training_step(batch, batch_idx)

    def on_validation_start(self):
        C.usleep(int(1e6 * self.config.user["validation_s"]))
