"""The server: from the sockets of the simulations to the trained model.

Offers: none.
"""
