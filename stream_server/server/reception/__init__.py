"""The receiver thread of a rank: sockets, client connections, and what rank 0 decides for all.

Offers: heartbeat, reception.
May import: buffers, config, machine, messages, server.checkpoint, server.intake, server.progress, server.ranks,
    server.replay, server.run, server.simulations, server.steering, storage.
"""
