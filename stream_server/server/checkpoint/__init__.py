"""Generations of the study's state on disk: complete and checksummed, or not there at all."""
