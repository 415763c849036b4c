"""A hint at the right capacity of the buffer, from the times for which it was full and training waited for data."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stream_server.server.training.buffer_times import COUNTS

# Below this share of the time, and in less than this time, nothing is said.
LEAST_SHARE, LEAST_S = 0.1, 1.0


def judge_capacity(capacity: int, ranks: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The part of report.json on the capacity, from the `BufferTimes` of each rank: shares of the seconds of a rank.

    `enough` would have helped, and is None if a larger buffer would not: it would if training waited after the buffer
    was full. While it was, the simulations would have brought as many samples as in any other time, and training would
    have taken as many while it waited: the smaller number of the two, spread over the waits, had no room.
    """
    open_s, waited_s, full_s, num_first, num_turns = (sum(it.get(name, 0) for it in ranks) for name in COUNTS)
    waiting, full = (seconds / (open_s or 1) for seconds in (waited_s, full_s))
    share, enough = min(waiting, full), None
    if share >= LEAST_SHARE and num_turns:
        enough = capacity + math.ceil(num_first / num_turns * share / (1 - share))
    seconds = round(open_s / max(1, len(ranks)), 3)
    return {"seconds": seconds, "waiting": round(waiting, 4), "full": round(full, 4), "enough": enough}


def capacity_hint(buffer: Mapping[str, Any]) -> str:
    """A sentence on what `judge_capacity` found; "" if there is nothing to say."""
    waiting, full, enough = buffer["waiting"], buffer["full"], buffer["enough"]
    if buffer["seconds"] < LEAST_S or max(waiting, full) < LEAST_SHARE:
        return ""
    if enough is not None:
        advice = f"a buffer.capacity of {enough:,} or more would have helped: training waited after it was full"
    elif waiting >= LEAST_SHARE:
        advice = "a larger buffer.capacity would not have helped: training waited, and hardly ever after it was full"
    else:
        advice = "with a larger buffer.capacity simulations would have waited less, and training not: it hardly waited"
    return f"{advice} (full {full:.0%} of the time, training waited for data {waiting:.0%})"
