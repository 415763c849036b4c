"""Opens Matplotlib's fonts once: it keeps them open, which no test has to answer for."""

import io

import pytest


@pytest.fixture(autouse=True, scope="session")
def fonts() -> None:
    # Every process of a run imports this file.
    from matplotlib.figure import Figure

    figure = Figure()
    # Numbers on a log axis are mathematics, which has letters in italics.
    figure.subplots().set(yscale="log", title="$x$", xlabel="x")
    figure.text(0, 0, "x", style="italic")
    figure.savefig(io.BytesIO(), format="png")
