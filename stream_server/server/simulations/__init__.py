"""Which simulations the study has, their parameters, and how far each has come. Rank 0.

Offers: design, handshake, launcher_process, roster, simulation_state.
May import: config, launcher.backends, machine, messages, server.intake.
"""
