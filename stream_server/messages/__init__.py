"""Everything that processes say to each other: the schemas, and one codec.

Offers: client, codec, connection, curve, ipc, launcher_link, launcher_place, notices, operator, routing, tcp, wire.
May import: storage.
"""
