"""The progress of a training: its counts and length, schedules that follow it, and requests to stop.

Offers: batches, length, phases, progress, schedules, stop.
May import: config, machine.
"""
