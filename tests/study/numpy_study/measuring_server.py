"""The linear model, which writes down after each step how far the study is."""

import json

from server import LinearServer


class MeasuringServer(LinearServer):
    def on_step_end(self):
        if self.rank == 0:
            progress = self.progress
            values = {name: getattr(progress, name) for name in ("fraction", "expected_samples", "expected_batches")}
            with (self.output_dir / "progress.jsonl").open("a") as file:
                file.write(json.dumps(values) + "\n")
