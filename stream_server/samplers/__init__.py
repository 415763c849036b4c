"""Choice of the parameters: sequences of points, classes that learn, and the door to a user's class.

The server finds each by the name that study.json gives it (`stream_server.built_in`), and knows none of them.

Offers: generator, sequences.
May import: config, storage.
"""
