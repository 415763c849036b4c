"""The choice of parameters while the study runs: a user's class suggests them, in a process of its own. Rank 0.

Offers: suggester.
May import: config, launcher.backends, server.intake, server.simulations, storage.
"""
