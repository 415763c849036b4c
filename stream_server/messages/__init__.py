"""Everything that processes say to each other: the schemas, and one codec.

Offers: client, codec, connection, ipc, launcher_link, notices, operator, routing, wire.
May import: storage.
"""
