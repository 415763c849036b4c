"""The page `/metrics` of rank 0, for a Prometheus server on the same machine or behind a tunnel."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from stream_server.errors import ConfigError
from stream_server.extras import extra_packages
from stream_server.server.study.status import Snapshot
from stream_server.storage.disk import remove_file, replace_file

HOST = "127.0.0.1"
POLL_S = 0.1
PATIENCE_S = 5.0
# Each connection takes a thread and a descriptor of rank 0.
MAX_CONNECTIONS = 16
PREFIX = "stream_server_"


class StudyCollector:
    """Turns the newest snapshot into metrics; the main thread sets it, and any thread reads it as one value.

    Until the training begins there is the incarnation alone.
    """

    def __init__(self, study: str, incarnation: int) -> None:
        self.study = study
        self.incarnation = incarnation
        self.snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Any]:
        """The metrics of this moment, for prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield self._family(
            GaugeMetricFamily, "incarnation", "Starts of the server in this run so far.", self.incarnation
        )
        if (now := self.snapshot) is None:
            return
        training = now.training
        counters = {
            "batches_trained": ("Batches trained, by all ranks.", training.batches),
            "samples_trained": ("Samples trained at least once, by all ranks.", training.samples),
            "draws_trained": ("Samples trained, repetitions included, by all ranks.", now.draws),
            "samples_received": ("Time steps accepted or rejected, by all ranks.", now.received),
            "training_seconds": ("Seconds of training, of all incarnations.", training.elapsed_s),
            "rounds": ("Rounds that have ended, of a study in rounds.", (training.rounds or [None])[0]),
            "checkpoints": ("Checkpoints committed by this incarnation.", now.checkpoints),
            "failed_checkpoints": ("Checkpoints that failed.", now.failed_checkpoints),
        }
        gauges = {
            "loss": ("Newest logged training loss.", now.loss),
            "validation_loss": ("Newest validation loss.", now.validation_loss),
            "buffer_population_samples": ("Samples in the buffer of rank 0.", training.population),
            "buffer_capacity_samples": ("Room for samples in the buffer of rank 0.", training.capacity),
            "last_checkpoint_timestamp_seconds": (
                "Unix time at which this incarnation's last checkpoint was seen committed.",
                now.checkpoint_at_s,
            ),
        }
        for kind, families in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
            for name, (text, value) in families.items():
                yield self._family(kind, name, text, value)
        states = GaugeMetricFamily(PREFIX + "simulations", "Simulations by state.", labels=["study", "state"])
        for state, num in now.simulations.items():
            states.add_metric([self.study, state], num)
        yield states

    def _family(self, kind: Any, name: str, text: str, value: float | None) -> Any:
        family = kind(PREFIX + name, text, labels=["study"])
        if value is not None:
            family.add_metric([self.study], value)
        return family


@contextmanager
def serve_metrics(collector: StudyCollector, port: int, file: Path) -> Iterator[str]:
    """Serve the collector's metrics on the loopback interface; returns the address of the page.

    Args:
        port: 0 for a free one.
        file: the address as a list of targets, which `file_sd_configs` of Prometheus reads; removed at the end.

    Raises:
        ConfigError: the port cannot be used, or prometheus-client is not installed.
    """
    # Its modules for HTTP and mail are no part of the start of studies without this page.
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        """Says nothing of each request, and gives up on who asks nothing."""

        timeout = PATIENCE_S

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with extra_packages("metrics.prometheus_port"):
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

    class LimitedServer(ThreadingWSGIServer):
        """Drops the oldest connection, which has no answer yet, for a new one while all places are taken."""

        places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        # In the order in which they came.
        open: ClassVar[dict[Any, None]] = {}

        def process_request(self, request: Any, client_address: Any) -> None:
            if not self.places.acquire(blocking=False):
                # Its thread reads the end, and leaves; or another one is leaving at this moment.
                with suppress(OSError, StopIteration, RuntimeError):
                    next(iter(self.open)).shutdown(socket.SHUT_RDWR)
                self.places.acquire()
            self.open[request] = None
            super().process_request(request, client_address)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                del self.open[request]
                self.places.release()

    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server = make_server(HOST, port, make_wsgi_app(registry), LimitedServer, Handler)
    except OSError as error:
        raise ConfigError(
            f"metrics.prometheus_port: port {port} cannot be used: {error.strerror}; give another one, or 0 for any"
        ) from error
    target = f"{HOST}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), name="prometheus")
    with server:
        replace_file(file, (json.dumps([{"targets": [target]}]) + "\n").encode())
        thread.start()
        try:
            yield f"http://{target}/metrics"
        finally:
            server.shutdown()
            thread.join()
            remove_file(file)
