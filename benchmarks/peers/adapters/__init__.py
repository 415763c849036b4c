"""One module for each way: `produce` runs in each simulation, `batches` in the training, as a user writes them."""
