"""A user's own way to choose the parameters."""


class Diagonal:
    """Points on the diagonal of the bounds, each half-way to the end of what is left."""

    def __init__(self, bounds, seed):
        self.bounds = bounds
        self.place = 1.0

    def suggest(self, n):
        return [self.next_point() for _ in range(n)]

    def next_point(self):
        self.place /= 2
        return {name: low + self.place * (high - low) for name, (low, high) in self.bounds.items()}
