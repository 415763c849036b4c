"""A class that suggests parameters, each beside those of the simulation with the highest loss that it knows."""

import numpy as np


class Wandering:
    def __init__(self, vocs, seed):
        self.random = np.random.default_rng(seed)
        self.losses = {}

    def suggest(self, num):
        centre = max(self.losses, key=self.losses.get, default=0.5)
        return [{"phase": float(np.clip(centre + self.random.normal(0, 0.3), 0, 1))} for _ in range(num)]

    def ingest(self, results):
        self.losses |= {row["phase"]: row["loss"] for row in results if row["loss"] == row["loss"]}
