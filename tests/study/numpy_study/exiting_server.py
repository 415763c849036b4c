"""A server of which a library ends the process: `user.trouble` names the method, `user.rank` the rank, -1 all."""

import ctypes
import os

from server import LinearServer

WAYS = {"os._exit": os._exit, "exit": ctypes.CDLL(None).exit}


class ExitingServer(LinearServer):
    """The linear model in code that takes an exit with 0 for a good end."""

    def fail_if_asked(self, method):
        user = self.config.user
        if method == user["trouble"] and user["rank"] in (self.rank, -1):
            WAYS[user["way"]](0)
