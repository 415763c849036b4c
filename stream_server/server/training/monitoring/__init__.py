"""Monitoring of a training: log points, gauges, the display, early stopping.

Offers: batch_rows, display, early_stopping, finite_losses, gauges, log_points, summary, trends,
unsaved_arrays, untrained_parameters.
May import: buffers, config, machine, messages, server.metrics, server.progress, server.training,
    server.user.
"""
