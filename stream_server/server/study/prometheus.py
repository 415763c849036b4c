"""The page `/metrics` of rank 0, for a Prometheus server on the same machine or behind a tunnel."""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from stream_server.buffers import Buffer
from stream_server.errors import ConfigError
from stream_server.extras import extra_packages
from stream_server.server.checkpoint.agreement import SaveCounts
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.progress import Progress
from stream_server.server.user.callbacks import Callback
from stream_server.storage.disk import remove_file, replace_file

HOST = "127.0.0.1"
INTERVAL_S = 1.0
POLL_S = 0.1
PATIENCE_S = 5.0
# Each connection takes a thread and a descriptor of rank 0.
MAX_CONNECTIONS = 16
PREFIX = "stream_server_"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScrapedStatus:
    """The study as rank 0's main thread last saw it; the time of the last checkpoint is None before the first."""

    batches: int
    samples: int
    draws: int
    received: int
    loss: float | None
    validation_loss: float | None
    population: int
    capacity: int
    elapsed_s: float
    checkpoints: int
    failed_checkpoints: int
    checkpoint_at_s: float | None
    simulations: Mapping[str, int] = field(default_factory=dict)


class StudyCollector:
    """Turns the newest status into metrics. `status` is set by the main thread and read, as one value, by any thread.

    Until the training begins there is the incarnation alone.
    """

    def __init__(self, study: str, incarnation: int) -> None:
        self.study = study
        self.incarnation = incarnation
        self.status: ScrapedStatus | None = None

    def collect(self) -> Iterator[Any]:
        """The metrics of this moment, for prometheus_client."""
        yield self._gauge("incarnation", "Starts of the server in this run so far.", self.incarnation)
        status = self.status
        if status is None:
            return
        yield self._counter("batches_trained", "Batches trained, by all ranks.", status.batches)
        yield self._counter("samples_trained", "Samples trained at least once, by all ranks.", status.samples)
        yield self._counter("draws_trained", "Samples trained, repetitions included, by all ranks.", status.draws)
        yield self._counter("samples_received", "Time steps accepted or rejected, by all ranks.", status.received)
        yield self._gauge("loss", "Newest logged training loss.", status.loss)
        yield self._gauge("validation_loss", "Newest validation loss.", status.validation_loss)
        yield self._gauge("buffer_population_samples", "Samples in the buffer of rank 0.", status.population)
        yield self._gauge("buffer_capacity_samples", "Room for samples in the buffer of rank 0.", status.capacity)
        yield self._counter("training_seconds", "Seconds of training, of all incarnations.", status.elapsed_s)
        yield self._counter("checkpoints", "Checkpoints committed by this incarnation.", status.checkpoints)
        yield self._counter("failed_checkpoints", "Checkpoints that failed.", status.failed_checkpoints)
        yield self._gauge(
            "last_checkpoint_timestamp_seconds",
            "Unix time at which this incarnation's last checkpoint was seen committed.",
            status.checkpoint_at_s,
        )
        yield self._simulations(status.simulations)

    def _gauge(self, name: str, text: str, value: float | None) -> Any:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(PREFIX + name, text, labels=["study"])
        if value is not None:
            family.add_metric([self.study], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Any:
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(PREFIX + name, text, labels=["study"])
        family.add_metric([self.study], value)
        return family

    def _simulations(self, counts: Mapping[str, int]) -> Any:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(PREFIX + "simulations", "Simulations by state.", labels=["study", "state"])
        for state, num in counts.items():
            family.add_metric([self.study, state], num)
        return family


class PrometheusStatus(Callback):
    """Shows the collector, in a round now and then, how the study is doing. Rank 0's main thread."""

    def __init__(
        self,
        collector: StudyCollector,
        *,
        progress: Progress,
        buffer: Buffer,
        metrics: Metrics,
        saves: SaveCounts,
        counts: Callable[[], tuple[Mapping[str, int], int]],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._collector = collector
        self._progress = progress
        self._buffer = buffer
        self._metrics = metrics
        self._saves = saves
        self._counts = counts
        self._clock = clock
        self._wall_clock = wall_clock
        self._next = -math.inf
        self._num_saves = 0
        self._saved_at_s: float | None = None

    def on_round(self, server: Any) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + INTERVAL_S
        if self._saves.committed > self._num_saves:
            self._num_saves, self._saved_at_s = self._saves.committed, self._wall_clock()
        progress, latest = self._progress, self._metrics.latest
        simulations, received = self._counts()
        self._collector.status = ScrapedStatus(
            batches=progress.batches,
            samples=progress.samples,
            draws=progress.draws,
            received=received,
            loss=latest.get("train/loss"),
            validation_loss=latest.get("val/loss"),
            population=self._buffer.population,
            capacity=self._buffer.capacity,
            elapsed_s=progress.elapsed_s,
            checkpoints=self._saves.committed,
            failed_checkpoints=self._saves.failed,
            checkpoint_at_s=self._saved_at_s,
            simulations=simulations,
        )


@contextmanager
def serve_metrics(collector: StudyCollector, port: int, file: Path) -> Iterator[str]:
    """Serve the collector's metrics on the loopback interface; gives the address of the page.

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
        """Lets go of the oldest connection, which has no answer yet, for one that comes while all places are taken."""

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
