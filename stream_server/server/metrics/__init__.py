"""Logged values, their means over ranks, and the writers that take them.

Offers: log_record, logged_numbers, metric_objects, metrics, monitor, union_mean, writers.
May import: machine, server.progress, server.ranks, storage.
"""
