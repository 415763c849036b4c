"""The program that starts, watches and restarts the simulations and the server.

Offers: none.
"""
