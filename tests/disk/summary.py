"""A campaign on screen."""

from rich.table import Table

from tests.disk.campaign import NOTHING, Counts, Violation
from tests.disk.states import LOSSES


def tables(counts: Counts) -> list[Table]:
    """States by scenario, and by what was lost in them."""
    by_scenario = Table("scenario", title=title(counts))
    by_scenario.add_column("states", justify="right")
    by_scenario.add_column("violations", justify="right")
    for name, num in counts.scenarios.items():
        by_scenario.add_row(name, str(num), str(sum(it.scenario == name for it in counts.violations)))
    by_loss = Table("lost", caption="one state may have lost several")
    by_loss.add_column("states", justify="right")
    for name in (NOTHING, *LOSSES):
        by_loss.add_row(name, str(counts.losses[name]))
    return [by_scenario, by_loss]


def title(counts: Counts) -> str:
    """The campaign in one line."""
    return (
        f"{counts.num_states} states, {counts.num_again} of them of a restart that was cut short, "
        f"{len(counts.violations)} violations, {counts.wall_s:.0f} s"
    )


def told(violation: Violation, seed: int) -> str:
    """What was violated, and how to see it again."""
    lost = ", ".join(violation.losses) or NOTHING
    cuts = ", then ".join(map(str, violation.cuts))
    return (
        f"{violation.scenario}: the power failed after step {cuts}; lost: {lost}\n{violation.text}"
        f"again: python -m tests.disk --seed {seed} --first {violation.number} --states 1"
    )
