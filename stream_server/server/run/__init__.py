"""One run of the server: what it needs, its folder and its identity.

Offers: build, cores, identity, logs, output, plan, start.
May import: buffers, config, launcher.backends, launcher.schedule, machine, messages, server.intake,
    server.ranks, storage.
"""
