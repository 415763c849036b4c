"""Breed: its weights against an independent computation, and where it puts its points."""

from typing import Any

import numpy as np
import pytest
from gest_api.vocs import VOCS, DiscreteVariable
from scipy.stats import multivariate_normal, norm, truncnorm

from stream_server.config.parameters import Bounds, scalars_of
from stream_server.samplers.breed import Breed, Proposal
from stream_server.samplers.unit_cube import UnitCube
from stream_server.samplers.vocs import cube_of, vocs_of

SIGMA = 0.1


def bounds(**limits: Any) -> dict[str, Bounds]:
    return {name: Bounds.model_validate(it) for name, it in limits.items()}


SQUARE = bounds(x=[0, 2], y=[1, 100, "log"])


def test_a_generator_sees_whole_numbers_on_the_scale_of_the_study() -> None:
    names = bounds(n=[1, 512, "log", "integer"], m=[1, 512, "integer"])
    places = np.linspace(0.001, 0.999, 9)[:, None].repeat(2, 1)
    found = cube_of(vocs_of(names)).values(places)
    np.testing.assert_array_equal(found, UnitCube(list(names.values())).values(places))
    assert found[4].tolist() == [16, 256]


def placed(point: dict[str, float]) -> np.ndarray:
    return np.array([point["x"] / 2, np.log(point["y"]) / np.log(100)])


def difficulty(place: np.ndarray) -> float:
    """A loss that is high in one corner of the unit square alone."""
    return float(norm.pdf(place, [0.9, 0.1], 0.1).prod())


def run(breed: Breed, num: int) -> list[dict[str, float]]:
    """A study that tells the results of each point before the next one is asked for."""
    points = []
    for _ in range(num):
        [point] = breed.suggest(1)
        points.append(point)
        own = {name: point[name] for name in ("x", "y")}
        breed.ingest([{**own, "loss": 1.0, "deviation": difficulty(placed(point)), "failed": 0.0}])
    return points


def test_the_density_of_a_proposal_is_that_of_truncated_normal_distributions_and_the_cube() -> None:
    random = np.random.default_rng(1)
    centres, weights = random.random((5, 3)), np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    points = random.random((20, 3))
    found = np.exp(Proposal(centres, weights, sigma=SIGMA, share=0.7).log_density(points))
    expected = np.full(20, 0.3)
    for centre, weight in zip(centres, weights, strict=True):
        cut = truncnorm(-centre / SIGMA, (1 - centre) / SIGMA, loc=centre, scale=SIGMA)
        expected += 0.7 * weight * cut.pdf(points).prod(1)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_points_are_drawn_with_the_density_that_the_weights_count_on() -> None:
    random = np.random.default_rng(2)
    proposal = Proposal(np.array([[0.05, 0.5], [0.8, 0.9]]), np.array([0.6, 0.4]), sigma=0.2, share=0.8)
    drawn = np.array([proposal.draw(random)[0] for _ in range(20_000)])
    observed = np.histogram2d(*drawn.T, bins=6, range=[[0, 1], [0, 1]])[0] / len(drawn)
    # The density in the middle of 30 x 30 small squares, summed up to the 6 x 6 larger ones.
    middle = (np.arange(30) + 0.5) / 30
    grid = np.stack(np.meshgrid(middle, middle, indexing="ij"), -1).reshape(-1, 2)
    fine = np.exp(proposal.log_density(grid)).reshape(30, 30)
    expected = fine.reshape(6, 5, 6, 5).sum((1, 3)) / 900
    assert expected.sum() == pytest.approx(1, abs=0.02)
    # Four standard deviations of a count, and the error of the sums.
    assert np.abs(observed - expected).max() < 4 * np.sqrt(expected.max() / len(drawn)) + 0.004


def test_weights_are_those_of_the_deterministic_mixture() -> None:
    breed = Breed(vocs_of(SQUARE), seed=3, sigma=SIGMA, share=0.6, first_share=0.6, generation=8)
    points = run(breed, 24)
    places = np.array([placed(point) for point in points])
    quality = np.array([difficulty(place) for place in places])

    def mixture_of(known: int, share: float, weights: np.ndarray) -> np.ndarray:
        density = np.full(len(places), 1 - share)
        for i in range(known):
            inside = np.prod(norm.cdf((1 - places[i]) / SIGMA) - norm.cdf(-places[i] / SIGMA))
            normal = multivariate_normal(places[i], SIGMA**2 * np.eye(2)).pdf(places)
            density += share * weights[i] * normal / inside
        return density

    # The first 8 came from the whole square, the next ones from what was known of these, and so on.
    first = quality[:8] / 8
    second = mixture_of(8, 0.6, first / first.sum())
    weights = quality[:16] / (8 + 8 * second[:16])
    third = mixture_of(16, 0.6, weights / weights.sum())
    expected = quality / (8 + 8 * second + 8 * third)
    found_places, found = breed.weights()
    np.testing.assert_allclose(found_places, places, atol=1e-12)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_breed_concentrates_where_the_loss_is_high_and_goes_on_to_explore(seed: int) -> None:
    points = run(Breed(vocs_of(SQUARE), seed=seed, generation=10), 200)
    late = np.array([placed(point) for point in points[100:]])
    is_near = (np.abs(late - [0.9, 0.1]) < 0.3).all(1)
    # The corner is 16 % of the square.
    assert is_near.mean() > 0.5
    assert (~is_near).mean() > 0.1
    assert any("_score" in point for point in points[100:])


def test_a_region_gains_no_weight_by_having_many_simulations() -> None:
    """All are equally hard, and most lie on one side: the other side must not be left alone."""
    breed = Breed(vocs_of(bounds(x=[0, 1], y=[0, 1])), seed=4, generation=50)
    random = np.random.default_rng(5)
    for _ in range(6):
        for point in breed.suggest(50):
            own = {name: point[name] for name in ("x", "y")}
            breed.ingest([{**own, "deviation": 0.9 + 0.2 * random.random()}])
    late = np.array([[point["x"], point["y"]] for point in breed.suggest(50)])
    assert 0.25 < (late[:, 0] < 0.5).mean() < 0.75


def test_without_results_or_with_results_that_say_nothing_points_come_from_everywhere() -> None:
    breed = Breed(vocs_of(SQUARE), seed=6)
    points = breed.suggest(40)
    for value, failed in ((0.0, 0.0), (float("nan"), 0.0), (-1.0, 0.0), (5.0, 1.0)):
        own = {name: points[0][name] for name in ("x", "y")}
        breed.ingest([{**own, "deviation": value, "failed": failed}])
        assert not any("_score" in point for point in breed.suggest(10))
    assert np.ptp([placed(point)[0] for point in points]) > 0.7


def test_a_thousand_parameters_neither_overflow_nor_leave_the_bounds() -> None:
    names = scalars_of(bounds(c={"range": [-1, 1], "size": 1000}))
    breed = Breed(vocs_of(names), seed=7, first_share=0.7)
    for point in breed.suggest(30):
        breed.ingest([{**{name: point[name] for name in names}, "deviation": point["c_0"] + 1}])
    points = breed.suggest(30)
    assert all(-1 <= point[name] <= 1 for point in points for name in names)
    assert sum("_score" in point for point in points) >= 10
    assert breed.weights()[1].sum() == pytest.approx(1)


@pytest.mark.parametrize("args", [{"sigma": 0}, {"share": 1.0}, {"first_share": 0.9}, {"ramp": 0}, {"generation": 0}])
def test_settings_that_make_no_sense_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Breed needs sigma > 0"):
        Breed(vocs_of(SQUARE), **args)


def test_breed_finds_the_category_and_the_whole_number_that_are_hard() -> None:
    names = bounds(scheme=["upwind", "central", "weno"], n=[1, 50, "integer"])
    breed = Breed(vocs_of(names), seed=8)
    points = []
    for _ in range(120):
        [point] = breed.suggest(1)
        points.append(point)
        is_hard = point["scheme"] == 2 and point["n"] > 40
        breed.ingest([{"scheme": point["scheme"], "n": point["n"], "deviation": float(is_hard)}])
    assert {point["scheme"] for point in points} == {0, 1, 2}
    assert all(point["n"] == int(point["n"]) and 1 <= point["n"] <= 50 for point in points)
    late = points[60:]
    # By chance it would be 7 %.
    assert sum(point["scheme"] == 2 and point["n"] > 40 for point in late) > 0.3 * len(late)


def test_values_of_others_that_are_no_whole_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the values of kind must be consecutive whole numbers"):
        Breed(VOCS(variables={"x": [0, 1], "kind": DiscreteVariable(values={1, 3})}))
