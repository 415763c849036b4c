"""Validation of the model on samples that it is never trained on.

Offers: rollout, validation, validation_batches, validation_record.
May import: buffers, config, server.intake, server.metrics, server.progress, server.ranks, server.user, storage.
"""
