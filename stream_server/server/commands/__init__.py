"""The command `stream-server`: checks, trials, evaluations and studies.

Offers: check.
May import: buffers, config, launcher.backends, machine, messages, server.checkpoint, server.intake,
    server.metrics, server.model, server.progress, server.ranks, server.replay, server.run, server.simulations,
    server.steering, server.study, server.training, server.training.monitoring, server.training.validation,
    server.user, storage.
"""
