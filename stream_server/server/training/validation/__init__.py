"""How good the model is on samples that it is never trained on.

Offers: validation, validation_batches, validation_record.
May import: buffers, server.intake, server.metrics, server.progress, server.ranks, server.user, storage.
"""
