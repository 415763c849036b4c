"""`stream-launcher` with little patience: a server is given up within a few seconds, so that tests need not wait.

IMPATIENT_STOPPED_S is how long a process of the server may be stopped by a signal.
"""

import os
import sys
from functools import partial

from stream_server.launcher.supervision import server_job, supervisor
from stream_server.launcher.supervision.cli import main
from stream_server.launcher.supervision.liveness import LivenessSettings, LivenessSocket

HEARTBEAT = LivenessSettings(interval_s=0.25, silent_s=4.0, return_s=0.5)

if __name__ == "__main__":
    supervisor.LivenessSocket = partial(LivenessSocket, heartbeat=HEARTBEAT)  # type: ignore[assignment,misc]
    server_job.LOOK_S = 0.25
    server_job.STOPPED_S = float(os.environ["IMPATIENT_STOPPED_S"])
    sys.exit(main())
