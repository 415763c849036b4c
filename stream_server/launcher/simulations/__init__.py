"""The simulations as they run: attempts, their jobs and what is reported of them.

Offers: attempt_folders, attempt_jobs, ensemble, remote_access, server_connection.
May import: config, launcher.backends, launcher.journal, launcher.schedule, machine, messages, storage.
"""
