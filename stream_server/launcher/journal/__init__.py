"""The journal, by which a launcher takes over from one that was killed.

Offers: history, journal, records.
May import: launcher.schedule, machine, messages, storage.
"""
