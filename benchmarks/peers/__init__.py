"""Stream Server beside what a user would pick instead: `make bench-peers`."""
