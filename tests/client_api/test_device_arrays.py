"""Arrays of other libraries than NumPy: in the memory of the host, and on a GPU, for which another memory stands in."""

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from stream_server.client_api import connect, device_arrays
from stream_server.client_api.fields import Fields
from stream_server.messages.client import FieldSpec
from tests.fakes.server import FakeServer

U = FieldSpec(name="u", shape=(2, 3))
VALUES = np.arange(6.0).reshape(2, 3)
OUT_OF_MEMORY = 2
# What the driver is asked for, and contexts.
OF_CONTEXT, PRIMARY, OWN = 1, 1001, 1002


class Driver:
    """Stands in for CUDA's driver: host memory is that of its one GPU. It keeps the names of what was called."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.pinned: list[Any] = []
        self.codes: dict[str, int] = {}
        # The context in which arrays are made, if the driver tells it; and those that became current.
        self.own_context: int | None = None
        self.pushed: list[int] = []

    @property
    def num_pinned(self) -> int:
        return self.called.count("cuMemHostAlloc") - self.called.count("cuMemFreeHost")

    def __getitem__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.called.append(name)
            if name == "cuMemHostAlloc":
                self.pinned.append(ctypes.create_string_buffer(arguments[1].value))
                arguments[0]._obj.value = ctypes.addressof(self.pinned[-1])
            elif name == "cuMemcpyDtoH_v2":
                ctypes.memmove(arguments[0], arguments[1].value, arguments[2].value)
            elif name == "cuPointerGetAttribute" and arguments[1] == OF_CONTEXT:
                arguments[0]._obj.value = self.own_context
            elif name == "cuDevicePrimaryCtxRetain":
                arguments[0]._obj.value = PRIMARY
            elif name == "cuCtxPushCurrent_v2":
                self.pushed.append(arguments[0].value)
            return self.codes.get(name, 0)

        return function


class OnGpu:
    """An array that no one but CUDA can read."""

    def __init__(self, array: np.ndarray, **others: Any) -> None:
        self.array = array
        strides = None if array.flags.c_contiguous else array.strides
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "strides": strides,
            "version": 3,
            **others,
        }


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(device_arrays.ctypes, "CDLL", lambda name: driver)
    return driver


def fields(*specs: FieldSpec, **sample: Any) -> Fields:
    found = Fields(specs or (U,), rank=0, num_ranks=1)
    found.fix_blocks(sample)
    return found


def sent(value: Any) -> np.ndarray:
    [array] = fields(u=value).arrays({"u": value})[1]
    return array


def test_an_array_on_a_gpu_is_copied_once_to_memory_that_is_pinned_once(driver: Driver) -> None:
    prepared = fields(u=OnGpu(VALUES))
    for factor in (1.0, 2.0):
        driver.called.clear()
        [array] = prepared.arrays({"u": OnGpu(factor * VALUES)})[1]
        np.testing.assert_array_equal(array, factor * VALUES)
        assert driver.called.count("cuMemcpyDtoH_v2") == 1
        assert driver.called.index("cuCtxSynchronize") < driver.called.index("cuMemcpyDtoH_v2")
        assert np.shares_memory(array, np.frombuffer(driver.pinned[0], np.float64))
    assert len(driver.pinned) == 1


@pytest.mark.parametrize(
    "array",
    [VALUES.T.copy().T, np.arange(24.0).reshape(4, 6)[::2, ::2], np.broadcast_to(1.0, (2, 3)), VALUES.astype("f4")],
    ids=["Fortran's order", "every second one", "broadcast", "float32"],
)
def test_an_array_on_a_gpu_may_have_any_layout(driver: Driver, array: np.ndarray) -> None:
    np.testing.assert_array_equal(sent(OnGpu(array)), array)


def test_rows_on_a_gpu_may_become_more_and_none(driver: Driver) -> None:
    rows = FieldSpec(name="x", shape=(9, 2), ragged=True)
    prepared = fields(rows, x=OnGpu(np.ones((1, 2))))
    for num in (3, 0, 5, 2):
        expected = np.arange(2.0 * num).reshape(num, 2)
        [array] = prepared.arrays({"x": OnGpu(expected)})[1]
        np.testing.assert_array_equal(array, expected)
    assert driver.num_pinned == 1


def test_a_worker_keeps_no_pinned_memory_of_simulations_that_have_ended(driver: Driver) -> None:
    with FakeServer((FieldSpec(name="u", shape=(2, 3)),)) as server:
        for num in range(3):
            with connect(server.connection, simulation_id=num) as simulation:
                simulation.send(0, u=OnGpu(VALUES))
                assert driver.num_pinned == 1
            assert driver.num_pinned == 0
        with contextlib.suppress(ZeroDivisionError), connect(server.connection, simulation_id=3) as simulation:
            simulation.send(0, u=OnGpu(VALUES))
            raise ZeroDivisionError
        assert driver.num_pinned == 0
        simulation = connect(server.connection, simulation_id=4)
        simulation.send(0, u=OnGpu(VALUES))
        simulation.invalidate("diverged")
    assert driver.num_pinned == 0
    assert driver.called.count("cuMemHostAlloc") == 5


def test_what_computes_an_array_is_waited_for_in_its_own_context_or_else_in_the_primary_one(driver: Driver) -> None:
    for own, expected in ((None, PRIMARY), (OWN, OWN)):
        driver.own_context = own
        driver.pushed.clear()
        prepared = fields(u=OnGpu(VALUES))
        prepared.close()
        # Its memory is given back there, too.
        assert driver.pushed == [expected] * 2
        assert driver.num_pinned == 0
    assert driver.called.count("cuDevicePrimaryCtxRetain") == driver.called.count("cuDevicePrimaryCtxRelease_v2") == 1


@pytest.mark.parametrize(
    ("array", "others", "told"),
    [(VALUES[::-1], {}, "runs backwards"), (VALUES, {"mask": OnGpu(VALUES)}, "masked")],
)
def test_what_cannot_be_copied_in_one_piece_is_refused(driver: Driver, array: Any, others: Any, told: str) -> None:
    with pytest.raises(TypeError, match=f"field 'u' on a GPU .*{told}.*: send a contiguous copy"):
        sent(OnGpu(array, **others))


@pytest.mark.parametrize("lazy", ["conj", "neg"])
def test_what_a_tensor_on_a_gpu_has_not_applied_yet_is_refused(driver: Driver, lazy: str) -> None:
    tensor = OnGpu(VALUES)
    setattr(tensor, f"is_{lazy}", lambda: True)
    with pytest.raises(TypeError, match=rf"'u' cannot be read .*its \.resolve_{lazy}\(\) was not called"):
        sent(tensor)


def test_an_empty_part_on_a_gpu_may_come_later(driver: Driver) -> None:
    prepared = Fields((U, FieldSpec(name="v", shape=(2, 3))), rank=1, num_ranks=2)
    prepared.declare("u", (2, 3), (0, 0))
    prepared.fix_blocks({"u": VALUES})
    present, arrays = prepared.arrays({"u": VALUES, "v": OnGpu(np.empty((0, 3)))})
    assert (present, len(arrays)) == (1, 1)
    with pytest.raises(ValueError, match="rank 1 left field 'v' out of its first sample"):
        prepared.arrays({"u": VALUES, "v": OnGpu(VALUES)})


def test_an_error_of_cuda_is_told_with_the_field(driver: Driver) -> None:
    driver.codes["cuMemHostAlloc"] = OUT_OF_MEMORY
    with pytest.raises(TypeError, match="'u' is on a GPU, and cuMemHostAlloc failed with error 2: send"):
        sent(OnGpu(VALUES))
    assert driver.called[-2:] == ["cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"]


def test_an_array_on_a_gpu_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_arrays, "DRIVER", "libno-such-driver.so")
    with pytest.raises(TypeError, match=r"'u' is on a GPU, and CUDA's driver is not here .libno-such.*: send"):
        sent(OnGpu(VALUES))


class OfDlpack:
    """An array that can be given to others, and no more."""

    def __dlpack__(self, **options: Any) -> Any:
        return VALUES.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return VALUES.__dlpack_device__()


class OfDlpackOnGpu(OfDlpack):
    """The same, on a GPU."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("it is on a GPU")


class WithGradient:
    """A tensor on a GPU that requires a gradient."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("it requires grad")


def unreadable(of: str) -> Any:
    import torch

    tensor = torch.tensor(VALUES)
    made: dict[str, Callable[[], Any]] = {
        "DLPack on a GPU": OfDlpackOnGpu,
        "with gradient on a GPU": WithGradient,
        "with gradient": lambda: tensor.clone().requires_grad_(),
        "conjugate": lambda: tensor.to(torch.complex128).conj(),
        "negative": lambda: tensor.to(torch.complex128).conj().imag,
        "bfloat16": lambda: tensor.to(torch.bfloat16),
    }
    return made[of]()


@pytest.mark.parametrize(
    "of", ["DLPack on a GPU", "with gradient on a GPU", "with gradient", "conjugate", "negative", "bfloat16"]
)
def test_an_array_that_cannot_be_read_is_refused_by_name_with_advice(of: str) -> None:
    value = unreadable(of)
    for call in (lambda: fields(u=value), lambda: fields(u=VALUES).arrays({"u": value})):
        with pytest.raises(TypeError, match=r"field 'u' cannot be read as an array \(.*\.detach\(\), .*\.float\(\)"):
            call()


def arrays_of(library: str) -> Sequence[Any]:
    if library == "DLPack":
        return [OfDlpack()]
    if library == "torch":
        import torch

        return [torch.tensor(VALUES), torch.tensor(VALUES, requires_grad=True).detach()]
    if library == "JAX":
        jax = pytest.importorskip("jax")
        return [jax.numpy.asarray(VALUES)]
    import warp

    warp.config.quiet = True
    return [warp.array(VALUES, dtype=float, device="cpu"), warp.array(VALUES, dtype=warp.vec3, device="cpu")]


@pytest.mark.parametrize("library", ["DLPack", "torch", "JAX", *(["Warp"] if find_spec("warp") else [])])
def test_arrays_of_other_libraries_are_sent_as_they_are(library: str) -> None:
    for array in arrays_of(library):
        np.testing.assert_array_equal(sent(array), VALUES)


def test_no_library_of_arrays_is_imported() -> None:
    code = (
        "import sys, numpy as np; from stream_server.client_api.device_arrays import DeviceArrays; "
        "DeviceArrays().on_host('u', [1.0]); print({'torch', 'cupy', 'jax', 'warp'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-P", "-c", code], text=True).strip() == "set()"
