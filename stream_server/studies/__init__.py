"""Studies from Python: check and start one, watch and stop its runs, and take tables, pictures and the model of them.

Offers: none.
May import: analysis, config, launcher.backends, launcher.supervision, machine, server.commands, server.model,
    server.ranks, server.run, server.study, server.user, storage.
"""
