"""Everything that processes say to each other: the schemas, and one codec.

Offers: client, codec, connection, connection_guard, curve, ipc, launcher_endpoint, launcher_link, notices, operator,
    routing, simulation_phase, tcp, wire.
May import: storage.
"""
