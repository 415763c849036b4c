"""Studies without simulations: samples that are recorded while one runs, and replayed later.

Offers: export, recorded_study, recorder, share, simulation_file, source.
May import: buffers, config, messages, server.intake, server.ranks, server.run, storage.
"""
