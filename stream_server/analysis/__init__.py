"""Runs as their files tell: tables, pictures, statuses, attempts; one that goes on is also asked, and stopped.

Offers: columns, export, figures, follow, growing, live, page, plot, reading, run_status, runs, simulations, story,
    timeline, validations.
May import: config, launcher.backends, launcher.journal, machine, messages, storage.
"""
