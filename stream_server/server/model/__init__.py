"""The model as a result: exported, kept among the best, and the start of another study.

Offers: best_models, model_export, saved_model, warm_start.
May import: config, server.checkpoint, server.metrics, server.progress, server.ranks, server.training.torch,
    server.user, storage.
"""
