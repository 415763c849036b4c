"""Parameters that are suggested while a study runs."""
