"""The distributions of what a network is trained on."""

from typing import Any

import numpy as np
import pytest

from stream_server.buffers import Buffer, Reservoir, Slots
from stream_server.server.metrics.log_record import Record
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring import gauges
from stream_server.server.training.monitoring.gauges import InputGauge
from tests.server.metrics.logged import Kept


def filled(shapes: dict[str, tuple[int, ...]], num: int, dtype: Any = np.float32) -> Buffer:
    """A buffer in which the values of sample i are i, sent by simulation i."""
    slots = Slots(shapes, num)
    slots.allocate(dict.fromkeys(shapes, dtype))
    buffer = Buffer(Reservoir(capacity=num, watermark=1, seed=1), slots)
    claimed = buffer.claim(num)
    slots.simulation_ids[claimed] = np.arange(num)
    for name, shape in shapes.items():
        slots.arrays[name][claimed] = np.arange(num).reshape(-1, *[1] * len(shape))
    buffer.enqueue(claimed)
    buffer.admit()
    return buffer


def gauge_of(buffer: Buffer) -> InputGauge:
    return InputGauge(
        buffer,
        parameter_names=["viscosity", "inflow"],
        parameters_of=lambda simulation: np.array([simulation, 10.0 * simulation]),
    )


def read(gauge: InputGauge) -> Record:
    writer = Kept()
    metrics = Metrics(SoloRanks(), [writer])
    gauge(metrics)
    metrics.write(1, 0.0)
    return writer.records[0]


def test_fields_and_parameters_have_the_statistics_of_the_samples_in_the_buffer() -> None:
    record = read(gauge_of(filled({"temperature": (2, 3)}, 5)))
    assert {name: it.num for name, it in record.histograms.items()} == {
        "field/temperature": 30,
        "parameter/viscosity": 5,
        "parameter/inflow": 5,
    }
    values = record.values
    assert (values["field/temperature/mean"], values["field/temperature/max"]) == (2.0, 4.0)
    assert values["field/temperature/std"] == pytest.approx(np.std(np.arange(5)))
    assert (values["parameter/inflow/min"], values["parameter/inflow/max"]) == (0.0, 40.0)


def test_only_so_many_samples_and_values_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "NUM_SAMPLES", 4)
    monkeypatch.setattr(gauges, "VALUES_PER_SAMPLE", 7)
    record = read(gauge_of(filled({"temperature": (100,)}, 50)))
    assert (record.histograms["field/temperature"].num, record.histograms["parameter/inflow"].num) == (4 * 7, 4)
    assert len(record.histograms["field/temperature"].counts) > 1, "all from one sample"


def test_samples_without_an_optional_field_do_not_count_for_it() -> None:
    buffer = filled({"u": (2,), "wind": (2,)}, 3)
    buffer.slots.leave_out("wind", [int(buffer.policy.slots()[0])])
    record = read(gauge_of(buffer))
    assert (record.histograms["field/u"].num, record.histograms["field/wind"].num) == (6, 4)


def test_of_complex_values_the_magnitude_counts() -> None:
    buffer = filled({"wave": ()}, 1, np.complex64)
    buffer.slots.arrays["wave"][:] = 3 + 4j
    assert read(gauge_of(buffer)).values["field/wave/max"] == 5.0


def test_nothing_is_logged_of_an_empty_buffer() -> None:
    slots = Slots({"u": (2,)}, 4)
    metrics = Metrics(SoloRanks())
    gauge_of(Buffer(Reservoir(capacity=4, watermark=1, seed=1), slots))(metrics)
    metrics.write(1, 0.0)
    assert metrics.latest == {}


def test_the_samples_are_let_go_and_count_as_never_drawn() -> None:
    buffer = filled({"u": (2,)}, 4)
    read(gauge_of(buffer))
    assert buffer.num_unseen == 4
    assert buffer.seen_counts().tolist() == [0, 0, 0, 0]
    buffer.withdraw(0)
    assert len(buffer.claim(1)) == 1, "its slot is still held"
