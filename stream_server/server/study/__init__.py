"""A study on one rank: its composition and set-up, its status and the console, failures, and the end.

Offers: composition, failure, saved_server, study, watchdog.
May import: all rooms that do not import it.
"""
