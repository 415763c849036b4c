"""The command `stream-study`. A run is read from its files; one that goes on is also asked, and stopped.

Offers: export, follow, live, operating, plot, reading, run_state.
May import: config, doctor, launcher.journal, machine, messages, storage, templates.
"""
