"""Training with torch, as if on the union of the batches of all ranks.

Offers: model, shards.
May import: config, machine, server.metrics, server.progress, server.ranks, server.training, server.user, storage.
"""
