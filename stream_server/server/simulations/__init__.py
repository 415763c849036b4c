"""The simulations of the study, their parameters, and how far each has come. Rank 0.

Offers: design, handshake, launcher_process, roster, simulation_table.
May import: config, launcher.backends, machine, messages, samplers, server.intake, storage.
"""
