"""A server whose class leaves something behind: `user.holds` says what, and `user.rank` on which rank."""

import subprocess
import threading

from server import LinearServer


class HoldingServer(LinearServer):
    """The linear model of somebody who never ends what he starts."""

    def prepare_training_attributes(self):
        super().prepare_training_attributes()
        if self.rank != self.config.user["rank"]:
            return
        if self.config.user["holds"] == "thread":
            threading.Thread(target=threading.Event().wait, name="plotter").start()
        else:
            self.viewer = subprocess.Popen(["sleep", "4321"], start_new_session=True)
