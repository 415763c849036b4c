"""The limits of the control groups of this process, which may be less than the cores and the memory that it sees."""

import math
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def own_groups(controller: str, root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> Iterator[Path]:
    """The folders of the groups, version 2 and 1, that limit `controller`, from that of this process upwards."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        # In version 1 each controller has a hierarchy, which those that share one also have under their names together.
        for top in {root / controllers, root / controller} if controllers else {root}:
            group = top / path.strip("/")
            # In a container the path can be that of the host, of which only the top is there.
            for folder in (group, *group.parents):
                yield folder
                if folder == top:
                    break


def cpu_quota(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float:
    """The CPU time that the groups of this process allow, in cores; infinite where none sets a limit."""
    return min(map(_quota_of, own_groups("cpu", root, own)), default=math.inf)


def _quota_of(group: Path) -> float:
    try:
        if (both := group / "cpu.max").exists():
            quota, period = both.read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def within_quota(num_cores: int) -> int:
    """Number of these cores that the groups of this process let it keep busy, at least one."""
    quota = cpu_quota()
    return num_cores if quota >= num_cores else max(1, math.floor(quota))
