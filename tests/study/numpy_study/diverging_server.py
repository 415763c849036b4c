"""The linear model, of which rank 1 alone changes one weight."""

from server import LinearServer


class DivergingServer(LinearServer):
    """From the first checkpoint on, or from batch `user.diverge_at`; the file `diverged` has the first such batch."""

    is_saved = False

    def on_checkpoint(self, path):
        self.is_saved = True

    def on_step_end(self):
        at = self.config.user.get("diverge_at")
        diverges = self.is_saved if at is None else self.progress.batches >= at
        if diverges and self.rank == 1:
            note_the_first(self)
            self.weights[2, 3] += 0.5


def note_the_first(server):
    note = server.config.study.output_dir / "diverged"
    if not note.exists():
        note.write_text(str(server.progress.batches))
