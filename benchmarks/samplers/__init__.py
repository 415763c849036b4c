"""Samplers of parameters compared on the studies of trajectories: `python -m benchmarks.samplers`."""
