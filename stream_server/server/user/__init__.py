"""The user's side of a training: classes to subclass, callbacks, and the data that user code receives.

Offers: callbacks, collate, components, forecast, framework, global_generators, losses, no_training, normalization,
rendering, simulation_data, stream_server, torch_server.
May import: buffers, config, server.metrics, server.progress, server.ranks, storage.
"""
