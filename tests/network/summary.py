"""A campaign on screen."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from tests.network.campaign import Result


def table(results: Sequence[Result]) -> Table:
    """Connections by the fault that they felt, in each kind of round."""
    kinds = sorted({result.kind for result in results})
    table = Table(
        title=f"{len(results)} rounds, {sum(bool(it.violations) for it in results)} with violations",
        caption=f"{sum(it.num_connections for it in results)} connections through the proxies",
        caption_justify="left",
    )
    table.add_column("connections with")
    for kind in kinds:
        table.add_column(f"{kind} ({sum(it.kind == kind for it in results)})", justify="right")
    for fault in sorted(cases(results)):
        nums = [sum(it.struck[fault] for it in results if it.kind == kind) for kind in kinds]
        table.add_row(fault, *map(str, nums))
    return table


def cases(results: Sequence[Result]) -> Counter[str]:
    """On how many connections which kind of fault was felt, in all."""
    return sum((it.struck for it in results), Counter())


def line(result: Result) -> str:
    """One round in words."""
    felt = ", ".join(f"{num} {kind}" for kind, num in result.struck.most_common()) or "nothing"
    verdict = "VIOLATED" if result.violations else "ok"
    return (
        f"round {result.number} ({result.kind}): {verdict}; {felt} on {result.num_connections}; {result.wall_s:.1f} s"
    )
