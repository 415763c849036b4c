"""The loop: batches, the control round and the training step.

Offers: buffer_times, control_round, fingerprint, loader_samples, loader_stream, loop, rounds, stream.
May import: buffers, config, server.metrics, server.progress, server.ranks, server.simulations, server.user, storage.
"""
