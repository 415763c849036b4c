"""Monitoring of a training: log points, gauges, early stopping.

Offers: batch_rows, early_stopping, finite_losses, gauges, unsaved_arrays, untrained_parameters.
May import: buffers, config, server.metrics, server.progress, server.training, server.user.
"""
