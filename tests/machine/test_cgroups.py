"""The cores that a process may keep busy."""

import math
from pathlib import Path

import pytest

from stream_server.machine import cgroups


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/job/step\n", {"job/cpu.max": "400000 100000\n", "job/step/cpu.max": "max 100000\n"}, 4.0),
        ("0::/gone/on/the/host\n", {"cpu.max": "200000 100000\n"}, 2.0),
        (
            "4:memory:/job\n3:cpu,cpuacct:/job\n",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n", "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"},
            3.0,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "nonsense\n"}, math.inf),
    ],
)
def test_a_limit_of_cpu_time_is_found_in_either_version_of_cgroups(
    tmp_path: Path, own: str, files: dict[str, str], expected: float
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert cgroups.cpu_quota(tmp_path / "root", tmp_path / "own") == expected


@pytest.mark.parametrize(("quota", "expected"), [(math.inf, 8), (8.0, 8), (2.5, 2), (0.5, 1)])
def test_cores_beyond_the_limit_of_cpu_time_do_not_count(
    monkeypatch: pytest.MonkeyPatch, quota: float, expected: int
) -> None:
    monkeypatch.setattr(cgroups, "cpu_quota", lambda: quota)
    assert cgroups.within_quota(8) == expected
