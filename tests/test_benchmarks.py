"""The benchmarks start: they are run by hand, and nothing else would notice."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from benchmarks import client
from benchmarks.__main__ import BENCHMARKS
from benchmarks.reception import reception
from stream_server.buffers import Fifo
from stream_server.client_api import connect
from stream_server.messages.client import FieldSpec

FOLDER = Path(__file__).parent.parent / "benchmarks"


def test_every_benchmark_has_a_name_of_its_own_and_can_be_called() -> None:
    packages = {package.parent.name for package in FOLDER.glob("*/__init__.py")}
    modules = {module.stem for module in FOLDER.glob("*.py")}
    assert not packages & modules
    assert all(map(callable, BENCHMARKS.values()))


@pytest.mark.parametrize("encrypts", [False, True])
def test_the_receiver_of_the_benchmarks_takes_what_a_client_sends(encrypts: bool) -> None:
    # With more credit the last step would wait to be packed with a next one.
    with reception(Fifo(capacity=8), sample_bytes=4, credit=1, encrypts=encrypts) as server:
        file = server.write_connection(over_tcp=encrypts)
        with connect(file) as simulation:
            for time_step in range(4):
                simulation.send(time_step, field=np.ones(1, "f4"))
            server.wait_until(lambda: server.buffer.population == 4)


@pytest.mark.full
def test_the_receiver_of_the_client_benchmark_speaks_the_protocol() -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(client.programs())
        field = FieldSpec(name="field", shape=(250_000,), dtype="<f4")
        for way in client.WAYS:
            receiver = client.Receiver(stack, folder, f"ours{way}", field, credit=32, way=way)
            sender = client.Sender(stack, folder, receiver, ["client", 1_000_000], 1_000_000, held_back=0)
            assert sender.one_round() > 0
