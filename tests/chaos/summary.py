"""A campaign on screen."""

import signal
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table

from tests.chaos.campaign import Outcome
from tests.chaos.kills import Kill
from tests.chaos.processes import KINDS

MOMENTS = ("start", "restore", "reconnect", "commit", "training")


def table(outcomes: Sequence[Outcome]) -> Table:
    """Kills by kind of process and by what the study was doing, and the totals."""
    kills = [kill for outcome in outcomes for kill in outcome.kills]
    replays = [num for outcome in outcomes for num in outcome.replays]
    table = Table(
        title=f"{len(outcomes)} studies, {len(kills)} kills, {sum(bool(o.violations) for o in outcomes)} violations",
        caption=(
            f"{sum(max(o.num_epochs - 1, 0) for o in outcomes)} restarts of the server, "
            f"{sum(replays)} batches redone, at most {max(replays, default=0)} at once"
        ),
        caption_justify="left",
    )
    table.add_column("killed")
    for heading in ("all", "stopped", *MOMENTS):
        table.add_column(heading, justify="right")
    for kind in KINDS:
        table.add_row(kind, *_row([kill for kill in kills if kill.kind == kind]))
    table.add_section()
    table.add_row("all", *_row(kills))
    return table


def line(outcome: Outcome) -> str:
    """One study in words."""
    hits = Counter(kill.kind for kill in outcome.kills)
    told = ", ".join(f"{num} {kind}" for kind, num in hits.most_common()) or "nothing"
    verdict = "VIOLATED" if outcome.violations else "ok"
    return (
        f"study {outcome.number} ({outcome.plan.policy}, {outcome.plan.num_ranks} ranks): {verdict}; "
        f"killed {told}; {outcome.num_epochs} epochs, {outcome.wall_s:.0f} s"
    )


def story(outcome: Outcome) -> str:
    """Its kills, one after the other."""
    return "; ".join(
        f"{datetime.fromtimestamp(kill.time, UTC):%H:%M:%S} {kill.number.name} {kill.name} {kill.pid} in {kill.moment}"
        for kill in outcome.kills
    )


def _row(kills: Sequence[Kill]) -> list[str]:
    moments = Counter(kill.moment for kill in kills)
    stopped = sum(kill.number == signal.SIGSTOP for kill in kills)
    return [str(num) for num in (len(kills), stopped, *(moments[moment] for moment in MOMENTS))]
