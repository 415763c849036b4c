"""Published studies on this software, beside training from files: `python -m benchmarks.published`."""
