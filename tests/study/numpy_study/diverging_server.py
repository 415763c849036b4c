"""The linear model, of which rank 1 alone changes one weight."""

from server import LinearServer


class DivergingServer(LinearServer):
    """From the first checkpoint on, or from batch `user.diverge_at`."""

    is_saved = False

    def on_checkpoint(self, path):
        self.is_saved = True

    def on_step_end(self):
        at = self.config.user.get("diverge_at")
        diverges = self.is_saved if at is None else self.progress.batches >= at
        if diverges and self.rank == 1:
            self.weights[2, 3] += 0.5
