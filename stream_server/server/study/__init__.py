"""A study on one rank: its composition and set-up, failures, and the closing account.

Offers: composition, failure, saved_server, study, watchdog.
May import: buffers, config, launcher.backends, launcher.journal, machine, messages, server.checkpoint, server.intake,
    server.metrics, server.model, server.progress, server.ranks, server.reception, server.replay, server.run,
    server.simulations, server.training, server.training.monitoring, server.training.validation, server.user, storage.
"""
