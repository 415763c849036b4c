"""Plans as lines of text: those that failed once are in seeds.txt, and are run by every test."""

import json
from dataclasses import asdict, fields
from pathlib import Path

from stream_server.buffers import WindowShape
from tests.faults.simulated.plan import Fault, Plan

FILE = Path(__file__).with_name("seeds.txt")


def to_line(plan: Plan) -> str:
    """All of a plan that is not as usual."""
    usual = {it.name: it.default for it in fields(Plan)}
    told = {name: value for name, value in asdict(plan).items() if value != usual[name] and name != "faults"}
    faults = [_without_usual(fault) for fault in plan.faults]
    return json.dumps(told | {"faults": faults})


def of_line(line: str) -> Plan:
    """The plan that `to_line` gave."""
    told = json.loads(line)
    if "window" in told:
        told["window"] = WindowShape(**told["window"])
    return Plan(**{**told, "faults": tuple(Fault(**fault) for fault in told["faults"])})


def kept() -> list[tuple[str, Plan]]:
    """The plans of seeds.txt, each with what it once showed: the comment before it."""
    found, comment = [], ""
    for line in FILE.read_text().splitlines():
        if line.startswith("#"):
            comment = line.removeprefix("#").strip()
        elif line.strip():
            found.append((comment, of_line(line)))
    return found


def _without_usual(fault: Fault) -> dict[str, object]:
    usual = {it.name: it.default for it in fields(Fault)}
    return {name: value for name, value in asdict(fault).items() if value != usual[name]}
