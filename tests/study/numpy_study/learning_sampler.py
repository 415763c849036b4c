"""A class that suggests parameters by the protocol of gest-api, and one that dies when it is asked again."""

import json
import os
import random


class Evenly:
    """Independent points, each with its number as score."""

    def __init__(self, vocs, seed):
        self.domains = {name: it.domain for name, it in vocs.variables.items()}
        self.random = random.Random(seed)
        self.num = 0

    def suggest(self, num_points):
        return [self.point() for _ in range(num_points)]

    def ingest(self, results): ...

    def point(self):
        self.num += 1
        return {**{name: self.random.uniform(*ends) for name, ends in self.domains.items()}, "_score": float(self.num)}


class Failing(Evenly):
    """Cannot suggest anything."""

    def suggest(self, num_points):
        raise ValueError("no data at all")


class Dying(Evenly):
    """Ends its process once it has answered a few times."""

    def suggest(self, num_points):
        if self.num >= 3:
            os._exit(7)
        return super().suggest(num_points)


class Telling(Evenly):
    """Writes down what it is told, one list of results in a line."""

    def __init__(self, vocs, seed, file):
        super().__init__(vocs, seed)
        self.file = file

    def ingest(self, results):
        with open(self.file, "a") as file:
            file.write(json.dumps(results) + "\n")


class InRounds(Evenly):
    """Writes down for how many it is asked, and which training simulations it knows of; ends after some."""

    def __init__(self, vocs, seed, file, enough):
        super().__init__(vocs, seed)
        self.file, self.num_enough = file, enough
        self.known = {}

    def suggest(self, num_points):
        if num_points > 1:
            with open(self.file, "a") as file:
                file.write(json.dumps([num_points, sorted(self.known)]) + "\n")
        return super().suggest(num_points)

    def ingest(self, results):
        self.known |= {row["simulation"]: row["num_losses"] for row in results if not row["held_out"]}
        assert set(self.known.values()) <= {20}

    def enough(self):
        return len(self.known) >= self.num_enough
