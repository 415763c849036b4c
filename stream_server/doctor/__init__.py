"""The examination of a machine before a first study: what is there, whether it is good, and what to do.

Facts are gathered from the machine; findings are made of facts alone.

Offers: examination.
May import: config, launcher.backends, machine, server.ranks, server.run.
"""
