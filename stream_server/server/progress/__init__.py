"""The progress of a training: its counts and length, schedules that follow it, what restarts changed, requests to stop.

Offers: batches, changes, length, phases, progress, schedules, stop.
May import: config, machine, messages.
"""
