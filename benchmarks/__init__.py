"""Measurements, each of which people start by hand: docs/internals/benchmarks.md."""

import os

# NumPy's threads spin, which would count as CPU time. The ranks of a study have one each, unless a user wants more.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
