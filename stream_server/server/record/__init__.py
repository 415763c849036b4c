"""What was trained on, kept on disk: written while a study runs, and played again without simulations."""
