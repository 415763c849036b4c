"""Ways by which codes that are not changed take part in a study. They know the client API alone.

Offers: none.
May import: client_api.
"""
