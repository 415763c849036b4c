"""Runs the tests in several pytest processes at once, which share the files among themselves (`tests/sharing.py`).

    python -m tests.run [--quick] [--parts N] [--deadline-s S] [arguments of pytest …]

A process that dies fails the run, and the others go on. Every test that was collected must have one outcome. Tests that
are marked `quiet` run at the end, while no other does.
"""

import argparse
import compileall
import json
import os
import re
import selectors
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.needs import what_brings
from tests.part import Part, described
from tests.support.timing import Deadline

DEADLINE_S = 1800.0
LOOK_S = 1.0
MAX_PARTS = 8
# Folders that `--quick` leaves out: MPI jobs, whole studies, compilers, faults of whole machines.
NOT_QUICK = ("adapters", "cluster", "configs", "mpi", "native", "studies", "study", "zoo")
NOT_QUICK += ("faults/chaos", "faults/fuzz", "faults/network", "faults/resources")
QUICK = ["-m", "not (full or slow or quiet)"]
QUICK += [f"--ignore=tests/{folder}" for folder in NOT_QUICK]
NUM_SLOWEST = 12
# Studies start hundreds of processes, each of which would compile what it imports where PYTHONDONTWRITEBYTECODE is set.
COMPILED = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "stream_server")]
# pytest compiles these itself, in a form of its own.
NOT_COMPILED = re.compile(r"/test_\w+\.py$")


def run(parts: Sequence[Part], deadline_s: float) -> bool:
    """Wait for all parts; whether they ended in time."""
    deadline = Deadline(deadline_s)
    with selectors.DefaultSelector() as selector:
        for part in parts:
            selector.register(part.pipe, selectors.EVENT_READ, part)
        while selector.get_map():
            ready = selector.select(LOOK_S)
            if deadline.has_passed:
                say(f"not at its end after {deadline_s:g} s")
                return False
            for key, _ in ready:
                if not key.data.hear():
                    selector.unregister(key.fd)
                    _ended(key.data)
    return True


def _ended(part: Part) -> None:
    part.process.wait()
    if part.verdict:
        part.say(part.verdict)
    for process in part.left_behind():
        part.num_left_behind += 1
        part.say(f"left behind: {described(process)}")
    part.kill()


def summary(parts: Sequence[Part]) -> bool:
    """Print what came of it; whether all is well."""
    for part in parts:
        if part.has_failed:
            print(f"\n===== part {part.number}: {part.verdict or 'failed'} =====\n{part.told()}")
    tests = {test: seconds for part in parts for test, seconds in part.seconds.items()}
    files = Counter[str]()
    for test, seconds in tests.items():
        files[test.partition("::")[0]] += seconds
    slowest = Counter(tests)
    print("\nslowest tests and files:")
    for name, seconds in [*slowest.most_common(NUM_SLOWEST), *files.most_common(NUM_SLOWEST)]:
        print(f"{seconds:7.1f} s  {name}")
    print("\nCPU time by folder:")
    for folder, cpu_s in _cpu_of_folders(parts).most_common():
        print(f"{cpu_s:7.1f} s  {folder}")
    print()
    for part in parts:
        print(f"part {part.number}: {_words(part.counts)}{', ' if part.verdict else ''}{part.verdict}")
    num_missing = sum(part.num_collected for part in parts) - len(tests)
    if num_missing:
        print(f"{num_missing} tests have no outcome")
    for part in parts:
        for test, reason in part.failed.items():
            print(f"FAILED {test}: {reason}")
    return bool(tests) and not num_missing and not any(part.has_failed for part in parts)


def left_out(parts: Sequence[Part]) -> str:
    """Which rooms miss how many tests, why, and what brings them; "" if nothing was left out."""
    reasons = {test: reason for part in parts for test, reason in part.left_out.items()}
    rooms = Counter((test.partition("::")[0].rpartition("/")[0], reason) for test, reason in reasons.items())
    lines = [f"{num:7}  {room}: {reason}" for (room, reason), num in sorted(rooms.items())]
    if command := what_brings(reasons.values()):
        lines.append(f"This brings them: {command}")
    return "\n".join([f"left out: {len(reasons)} tests", *lines]) if reasons else ""


def _cpu_of_folders(parts: Sequence[Part]) -> Counter[str]:
    folders = Counter[str]()
    for part in parts:
        for test, cpu_s in part.cpu_s.items():
            folders[Path(test.partition("::")[0]).parent.as_posix()] += cpu_s
    return folders


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))


def say(text: str) -> None:
    print(text, flush=True)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="what needs neither MPI jobs nor whole studies")
    parser.add_argument("--parts", type=int, help="how many processes")
    parser.add_argument("--deadline-s", type=float, default=DEADLINE_S)
    parser.add_argument("--times", type=Path, help="write seconds and CPU seconds of each test to this file, as JSON")
    options, arguments = parser.parse_known_args()
    if options.quick:
        arguments = [*QUICK, *arguments]
    # Quick tests compute, and each process imports and collects all of them first; the others mostly wait for processes
    # of their own, and one of them for a cluster.
    num_parts = options.parts or min(MAX_PARTS, (os.cpu_count() or 1) + (0 if options.quick else 5))
    signal.signal(signal.SIGTERM, _leave)
    # A shell without job control starts what runs in the background with SIGINT ignored, and so would be all studies.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started, mark = time.monotonic(), uuid.uuid4().hex
    for folder in COMPILED:
        compileall.compile_dir(folder, quiet=2, rx=NOT_COMPILED)
    say(f"{num_parts} processes of: pytest {' '.join(arguments)}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tests-")))
        claims = folder / "claims"
        claims.mkdir()
        parts = [
            stack.enter_context(
                Part(number, claims, arguments, mark=f"{mark}-{number}", torch_first=number < (num_parts + 1) // 3)
            )
            for number in range(num_parts)
        ]
        in_time = run(parts, options.deadline_s)
        for part in parts:
            part.stop()
        is_well = summary(parts) and in_time
    if options.times is not None:
        times = {
            "seconds": {test: s for part in parts for test, s in part.seconds.items()},
            "cpu_s": {test: s for part in parts for test, s in part.cpu_s.items()},
        }
        options.times.write_text(json.dumps(times, indent=1))
    if without := left_out(parts):
        # What is missing in CI must be installed there.
        is_well &= not os.environ.get("CI")
        print(without)
    total = sum((part.counts for part in parts), Counter[str]())
    used = os.times()
    took = f"{time.monotonic() - started:.0f} s ({used.children_user + used.children_system:.0f} s of CPU)"
    print(f"{'passed' if is_well else 'FAILED'}: {_words(total)} in {took}")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
