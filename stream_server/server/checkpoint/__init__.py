"""Checkpoints of a study: captured, written, agreed on, found and restored.

Offers: agreement, capture, continuation, folder, incarnations, random_states, restore, saver, search, user_state.
May import: buffers, config, machine, messages, server.intake, server.progress, server.ranks, server.run,
    server.training, server.user, storage.
"""
