"""The samplers that learn a model of the scores: where they put points on a map of difficulty that is known."""

import sys

import numpy as np
import pytest
import torch

from stream_server.config.parameters import scalars_of
from stream_server.samplers.generative import Generative
from stream_server.samplers.learning import ModelGenerator
from stream_server.samplers.uncertainty import Uncertainty
from stream_server.samplers.vocs import vocs_of
from tests.samplers.test_breed import SQUARE, bounds, placed, run

MODELS = [Uncertainty, Generative]


@pytest.mark.parametrize("model", MODELS)
def test_points_concentrate_where_the_score_is_high_and_go_on_to_explore(model: type[ModelGenerator]) -> None:
    points = run(model(vocs_of(SQUARE), seed=1, generation=30, fit_s=600.0), 120)
    late = np.array([placed(point) for point in points[60:]])
    assert ((late >= 0) & (late <= 1)).all()
    is_near = (np.abs(late - [0.9, 0.1]) < 0.3).all(1)
    # The corner is 16 % of the square.
    assert is_near.mean() > 0.4
    assert (~is_near).mean() > 0.1
    assert any("_score" in point for point in points[60:])


@pytest.mark.parametrize("model", MODELS)
def test_a_seed_gives_the_same_points_again_and_another_one_others(model: type[ModelGenerator]) -> None:
    first, again, other = (run(model(vocs_of(SQUARE), seed=seed, generation=12, fit_s=600.0), 20) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("model", MODELS)
def test_vectors_whole_numbers_and_categories_stay_within_their_bounds(model: type[ModelGenerator]) -> None:
    names = scalars_of(
        bounds(modes={"range": [-2, 2], "size": 100}, n=[1, 9, "log", "integer"], scheme=["upwind", "weno"])
    )
    sampler = model(vocs_of(names), seed=5, generation=20, share=0.9)
    for point in sampler.suggest(20):
        sampler.ingest([{**{name: point[name] for name in names}, "deviation": point["modes_0"] + 2}])
    points = sampler.suggest(20)
    assert sum("_score" in point for point in points) >= 10
    for point in points:
        assert all(-2 <= point[f"modes_{i}"] <= 2 for i in range(100))
        assert point["n"] in range(1, 10)
        assert point["scheme"] in (0, 1)


@pytest.mark.parametrize(("fit_s", "num_steps"), [(1e-9, 0), (600.0, 3)])
@pytest.mark.parametrize("model", MODELS)
def test_learning_ends_in_time(
    model: type[ModelGenerator], fit_s: float, num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: taken.append(self))
    monkeypatch.setattr(sys.modules[model.__module__], "NUM_STEPS", 3)
    sampler = model(vocs_of(SQUARE), seed=6, fit_s=fit_s)
    random = np.random.default_rng(7)
    sampler.ingest([{"x": x, "y": y, "deviation": x} for x, y in np.array([0, 1]) + random.random((500, 2))])
    assert len(sampler.suggest(10)) == 10
    assert len(taken) == num_steps


@pytest.mark.parametrize("model", MODELS)
def test_scores_that_say_nothing_are_not_learned_from(model: type[ModelGenerator]) -> None:
    sampler = model(vocs_of(SQUARE), seed=8)
    for value, failed in ((0.0, 0.0), (float("nan"), 0.0), (-1.0, 0.0), (5.0, 1.0)):
        points = sampler.suggest(10)
        assert not any("_score" in point for point in points)
        sampler.ingest([{**point, "deviation": value, "failed": failed} for point in points])


def test_held_out_simulations_count_only_by_their_own_scores() -> None:
    by_loss, by_error = Uncertainty(vocs_of(SQUARE)), Uncertainty(vocs_of(SQUARE), metric="validation_loss")
    held_out = {"x": 1.0, "y": 10.0, "held_out": 1.0, "loss": float("nan"), "validation_loss": 3.0}
    for sampler in (by_loss, by_error):
        sampler.ingest([held_out])
    assert by_loss.scored[1].tolist() == []
    assert by_error.scored[1].tolist() == [3.0]
    np.testing.assert_allclose(by_error.scored[0], [[0.5, 0.5]])


@pytest.mark.parametrize("args", [{"share": 1.0}, {"generation": 0}, {"fit_s": 0}])
@pytest.mark.parametrize("model", MODELS)
def test_settings_that_make_no_sense_are_refused(model: type[ModelGenerator], args: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"{model.__name__} needs 0 <= share < 1"):
        model(vocs_of(SQUARE), **args)
