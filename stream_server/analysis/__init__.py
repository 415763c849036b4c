"""Reads what a run has written: its files alone, whether it is still going on or long over."""
