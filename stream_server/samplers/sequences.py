"""The samplers that choose the parameters of simulations: point i of an endless sequence."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from stream_server.built_in import SAMPLERS, load_named
from stream_server.config.parameters import Bounds
from stream_server.errors import UserCodeError
from stream_server.samplers.generator import PointGenerator, Values
from stream_server.samplers.unit_cube import UnitCube


class Sampler(Protocol):
    """An endless (or long enough) sequence of parameter values, the same in every process."""

    def values(self, index: int) -> Values:
        """The values of all parameters at place `index` of the sequence, in the order of study.json."""
        ...


class Uniform:
    """Independent points; each has a random generator of its own."""

    def __init__(self, cube: UnitCube, seed: SeedSequence) -> None:
        self._cube = cube
        self._seed = seed

    def values(self, index: int) -> Values:
        return _values(self._cube, _generator(self._seed, index).random(len(self._cube)))


class LatinHypercube:
    """One stratified design of `num` points; what is drawn beyond it is uniform, for it cannot be extended."""

    def __init__(self, cube: UnitCube, seed: SeedSequence, num: int) -> None:
        self._cube = cube
        self._seed = seed
        self._num = num
        self._beyond = Uniform(cube, seed)

    @functools.cached_property
    def _points(self) -> np.ndarray:
        from scipy.stats import qmc  # type: ignore[import-untyped]

        return np.asarray(qmc.LatinHypercube(len(self._cube), rng=_generator(self._seed)).random(self._num))

    def values(self, index: int) -> Values:
        """A point of the design, or beyond it an independent one."""
        if index >= self._num or not len(self._cube):
            return self._beyond.values(index)
        return _values(self._cube, self._points[index])


class LowDiscrepancy:
    """A scrambled Halton or Sobol sequence (Owen 2017; Joe and Kuo 2008), continued as far as is asked for."""

    def __init__(self, cube: UnitCube, seed: SeedSequence, kind: str) -> None:
        self._cube = cube
        self._seed = seed
        self._kind = kind
        self._points = np.empty((0, len(cube)))

    def values(self, index: int) -> Values:
        """Point `index`. The sequence is made again, twice as long, when it is too short: its start stays the same."""
        if index >= len(self._points) and len(self._cube):
            self._points = self._first(1 << index.bit_length())
        return _values(self._cube, self._points[index]) if len(self._cube) else ()

    def _first(self, num: int) -> np.ndarray:
        from scipy.stats import qmc

        engine = {"halton": qmc.Halton, "sobol": qmc.Sobol}[self._kind]
        return np.asarray(engine(len(self._cube), rng=_generator(self._seed)).random(num))


class GeneratedPoints:
    """Points that the user's class suggests: all `num` planned ones at the first call, and one at each later one.

    So a class that is deterministic in its seed gives each simulation the same parameters every time.
    """

    def __init__(self, make: Callable[[], PointGenerator], num: int) -> None:
        self._make = make
        self._num = num
        self._rows: list[Values] = []

    @functools.cached_property
    def _generator(self) -> PointGenerator:
        return self._make()

    def values(self, index: int) -> Values:
        """Suggestion number `index`, asking for more when there are not so many yet.

        Raises:
            ConfigError, UserCodeError: see `PointGenerator`.
        """
        while index >= len(self._rows):
            suggested = self._generator.suggest(1 if self._rows else max(1, self._num))
            if suggested.problem:
                raise UserCodeError(suggested.problem)
            self._rows.extend(point.values for point in suggested.points)
        return self._rows[index]


def uniform(cube: UnitCube, seed: SeedSequence, num: int) -> Sampler:
    """Make the sampler `uniform`; here and below `num` points are planned."""
    return Uniform(cube, seed)


def latin_hypercube(cube: UnitCube, seed: SeedSequence, num: int) -> Sampler:
    """Make the sampler `lhs`."""
    return LatinHypercube(cube, seed, num)


def halton(cube: UnitCube, seed: SeedSequence, num: int) -> Sampler:
    return LowDiscrepancy(cube, seed, "halton")


def sobol(cube: UnitCube, seed: SeedSequence, num: int) -> Sampler:
    return LowDiscrepancy(cube, seed, "sobol")


def make_sampler(name: str, bounds: Mapping[str, Bounds], seed: SeedSequence, num: int, *, folder: Path) -> Sampler:
    """The built-in sampler of this name."""
    make = load_named(name, SAMPLERS, folder, kind="parameters.sampler")
    sampler: Sampler = make(UnitCube(tuple(bounds.values())), seed, num)
    return sampler


def _generator(seed: SeedSequence, *key: int) -> Generator:
    """A new generator. Never of `seed` itself, which counts what is spawned from it, as scipy.stats.qmc does."""
    return default_rng(SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *key)))


def _values(cube: UnitCube, place: np.ndarray) -> Values:
    return tuple(cube.values(place).tolist())
