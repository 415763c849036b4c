"""The table that a person sees at the end of a study."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from stream_server.server.training.display import number, shares

REASONS = {
    "rejected": "rejected",
    "messages refused": "refused",
    "never produced": "never_produced",
    "untrained": "untrained_reasons",
}


def summary(report: Mapping[str, Any]) -> Table:
    """The summary table that is printed at the end of a study."""
    table = Table(title=f"{report['study']}: {report['exit_reason']}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in _summary_rows(report):
        table.add_row(name, Text(text))
    return table


def _summary_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    samples, simulations = report["samples"], report["simulations"]
    rate = report["throughput"]
    rows = [
        ("simulations", _counts(simulations, ("requested", "finished", "given_up", "invalid", "stopped"))),
        ("samples", _counts(samples, ("expected", "accepted", "trained", "skipped", "withdrawn", "untrained"))),
    ]
    if samples["duplicates"]:
        rows.append(("duplicates", f"{samples['duplicates']:,}, each dropped"))
    for title, key in REASONS.items():
        if samples[key]:
            rows.append((title, _some([f"{reason}: {num:,}" for reason, num in samples[key].items()])))
    rows += [
        (
            "batches",
            f"{report['batches']:,} on {counted(report['ranks'], 'rank')}, {rate['batches_per_s']:,.1f}/s",
        ),
        ("draws", f"{report['draws']:,}, {rate['samples_per_s']:,.0f}/s"),
    ]
    if report["validation"]:
        first, last = report["validation"][0], report["validation"][-1]
        best = f", best {number(report['best'].get('loss'))} at batch {report['best'].get('batch')}"
        rows.append(("validation", f"{number(first['loss'])} -> {number(last['loss'])}{best}"))
    rows.append(("time", f"{report['wall_s']:,.1f} s: {shares(report['phases_s'], len(report['phases_s']))}"))
    if report["failures"]:
        rows.append(("given up", _some([_failure(it) for it in report["failures"]])))
    if report["restarts"]:
        survived = f", {report['simulations']['survived_restarts']:,} running simulations went on"
        rows.append(("restarts", f"{report['restarts']:,} of the server{survived}"))
    if report["warnings"]:
        rows.append(("warnings", _some(list(report["warnings"]))))
    rows.append(("account", "balanced" if report["balanced"] else "NOT BALANCED: " + _some(list(report["unbalanced"]))))
    rows.append(("exit code", f"{report['exit_code']} {first_line(report['message'])}".rstrip()))
    return rows


def _failure(failure: Mapping[str, Any]) -> str:
    return f"{failure['id']} after {failure['attempts']} attempts: {failure['reason']} ({failure['log']})"


def _counts(counts: Mapping[str, int], names: tuple[str, ...]) -> str:
    required = names[:2]
    return ", ".join(f"{counts[it]:,} {it.replace('_', ' ')}" for it in names if counts[it] or it in required)


def _some(texts: list[str], num: int = 5) -> str:
    more = [f"and {len(texts) - num} more, see report.json"] if len(texts) > num else []
    return "\n".join(texts[:num] + more)


def first_line(text: str) -> str:
    """The first line; the others have been shown above the table."""
    return text.partition("\n")[0]


def counted(num: int, noun: str) -> str:
    """The number with its noun in the singular or plural."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"
