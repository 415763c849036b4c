"""The choice of parameters while the study runs: a user's class suggests them, in a process of its own. Rank 0.

Offers: feedback, suggester.
May import: config, launcher.backends, launcher.schedule, machine, samplers, server.intake, server.progress,
    server.ranks, server.simulations, server.user, storage.
"""
