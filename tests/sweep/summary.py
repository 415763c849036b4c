"""A sweep on screen."""

from rich.table import Table

from tests.sweep.campaign import Tally


def table(title: str, tally: Tally) -> Table:
    """How many cases there were of each kind (lines, columns), and what came of them."""
    columns = sorted({column for _, column in tally.rows})
    found = Table(
        title=f"{title}: {tally.num_cases} cases, {len(tally.violations)} violations",
        caption="; ".join([f"{tally.wall_s:.0f} s", *(f"{name}: {num}" for name, num in tally.outcomes.most_common())]),
        caption_justify="left",
    )
    found.add_column("")
    for heading in ("all", *columns):
        found.add_column(heading, justify="right")
    for row in dict.fromkeys(row for row, _ in tally.rows):
        counts = [tally.rows[row, column] for column in columns]
        found.add_row(row, str(sum(counts)), *map(str, counts))
    found.add_section()
    sums = [sum(num for (_, it), num in tally.rows.items() if it == column) for column in columns]
    found.add_row("all", str(sum(sums)), *map(str, sums))
    return found
