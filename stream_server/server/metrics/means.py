"""Weighted means over batches and ranks."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Means:
    """Weighted means under construction: of each name the products value × weight, and the weights."""

    products: dict[str, list[float]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float, weight: float) -> None:
        self.products.setdefault(name, []).append(value * weight)
        self.weights[name] = self.weights.get(name, 0.0) + weight

    def to_json(self) -> dict[str, Any]:
        return {name: [products, self.weights[name]] for name, products in self.products.items()}

    @classmethod
    def merged(cls, per_rank: Iterable[Mapping[str, Any]]) -> "Means":
        means = cls()
        for of_rank in per_rank:
            for name, (products, weight) in of_rank.items():
                means.products.setdefault(name, []).extend(products)
                means.weights[name] = means.weights.get(name, 0.0) + weight
        return means

    def values(self) -> dict[str, float]:
        """The means. Their sums are rounded once, so they do not depend on how batches are dealt to the ranks."""
        return {name: _exact_sum(products) / self.weights[name] for name, products in self.products.items()}


def _exact_sum(values: list[float]) -> float:
    # fsum refuses infinities of both signs and sums that overflow on the way; there is no exact sum then.
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)
