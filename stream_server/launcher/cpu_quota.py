"""The cores that this process may keep busy: its cgroups may allow less CPU time than it sees cores."""

import math
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def cpu_quota(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float:
    """The CPU time that the cgroups of this process allow, in cores; infinite where none sets a limit."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return math.inf
    found = math.inf
    for _, controllers, path in lines:
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers
        group = top / path.strip("/")
        # Each level may set a limit. In a container the path can be that of the host, of which only the top is there.
        for folder in (group, *group.parents):
            found = min(found, _quota_of(folder))
            if folder == top:
                break
    return found


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
    """As many of these cores as the cgroups of this process let it keep busy, and one at least."""
    quota = cpu_quota()
    return num_cores if quota >= num_cores else max(1, math.floor(quota))
