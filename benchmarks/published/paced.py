"""The heat simulation of configs/heat, at the pace of a slower solver."""

import argparse
import sys
import time
from pathlib import Path

from stream_server.client_api import connect

HEAT = Path(__file__).parents[2] / "configs" / "heat"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-s", type=float, required=True, help="seconds between two time steps")
    parser.add_argument("--size", type=int, required=True)
    for name in ("initial", "left", "right", "bottom", "top"):
        parser.add_argument(f"--{name}", type=float, required=True)
    arguments = vars(parser.parse_args())
    step_s = arguments.pop("step_s")
    sys.path.insert(0, str(HEAT))
    from heat import solve

    with connect() as simulation:
        due_s = time.monotonic()
        for time_step, temperature in enumerate(solve(**arguments)):
            due_s += step_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            if not simulation.send(time_step, temperature=temperature):
                break
            # Time in which the server had no room is not caught up with.
            due_s = max(due_s, time.monotonic() - step_s)


if __name__ == "__main__":
    main()
