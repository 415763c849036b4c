"""The command `stream-server`: checks, trials, evaluations and studies.

Offers: check.
May import: all rooms that do not import it.
"""
