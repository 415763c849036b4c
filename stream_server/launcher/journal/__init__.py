"""The journal, by which a launcher takes over from a killed one.

Offers: history, journal, records.
May import: launcher.schedule, machine, messages, storage.
"""
