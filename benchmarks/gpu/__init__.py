"""Training on a GPU: our loop over samples that arrive, against the same loop over samples that lie on the GPU."""
