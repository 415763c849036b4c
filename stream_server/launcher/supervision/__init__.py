"""The server as a job: its start, its liveness and its restarts; the launcher from beginning to end.

Offers: runs.
May import: config, launcher.backends, launcher.journal, launcher.schedule, launcher.simulations, machine, messages,
    storage.
"""
