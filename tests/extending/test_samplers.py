"""A sampler is one class in one file that study.json names."""

import numpy as np

from stream_server.server.simulations.design import ParameterDesign
from tests.support.studies import StudyFolder

GOLDEN = {"parameters.sampler": "golden.py:Golden", "parameters.bounds": {"initial": [0, 1], "left": [2, 4]}}


def test_the_sampler_of_the_page_spreads_its_points_and_is_the_same_when_it_is_asked_again(folder: StudyFolder) -> None:
    config = folder.load(GOLDEN | {"study.simulations": 64})
    points = [ParameterDesign(config).parameters(simulation) for simulation in (5, *range(64))]
    assert points[0] == points[6]
    values = np.array([[point["initial"], (point["left"] - 2) / 2] for point in points[1:]])
    counts = np.histogram2d(*values.T, bins=4, range=[[0, 1], [0, 1]])[0]
    assert counts.min() >= 2
    assert counts.max() <= 6
