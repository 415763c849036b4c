"""One run of the server: what it needs, its folder, its identity and its report.

Offers: build, cores, curve, identity, logs, output, plan, report, start.
May import: buffers, config, launcher.backends, launcher.schedule, machine, messages, server.intake, server.progress,
    server.ranks, storage.
"""
