"""The examination of a machine before a first study: what is there, whether it is good, and what to do.

Each check looks at one thing and gives its finding.

Offers: checks.
May import: config, launcher.backends, machine, server.ranks, server.run.
"""
