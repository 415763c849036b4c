"""Runs as their files tell: tables, pictures, states, attempts; one that goes on is also asked, and stopped.

Offers: attempts, export, follow, growing, live, operating, page, palette, plot, reading, run_state, validations.
May import: config, launcher.backends, launcher.journal, machine, messages, storage.
"""
