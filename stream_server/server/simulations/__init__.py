"""The simulations of the study, their parameters, and how far each has come. Rank 0.

Offers: design, generator, handshake, launcher_process, roster, samplers, simulation_table, vocs.
May import: config, launcher.backends, machine, messages, server.intake, storage.
"""
