"""Arrays on a GPU, or of DLPack alone, of whatever library: none is imported."""

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

DRIVER = "libcuda.so.1"


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn what a library raises when the value of a field is read into a TypeError that names the field."""
    try:
        yield
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(
            f"field {name!r} cannot be read as an array ({error}): send a copy of it in the memory of the host, and of "
            "a tensor .detach(), .resolve_conj(), .resolve_neg() or .float()"
        ) from error


class DeviceArrays:
    """Copies arrays on a GPU to pinned memory, when what computes them is done. Each copy of a field overwrites it."""

    def __init__(self) -> None:
        self._driver: Any = None
        # The size, the memory and the context in which it was pinned.
        self._pinned = dict[str, tuple[int, ctypes.c_void_p, ctypes.c_void_p]]()

    def on_host(self, name: str, value: Any) -> Any:
        """The value of a field, as something of which NumPy makes an array; TypeError if it cannot be copied."""
        if type(value) is np.ndarray:
            return value
        with readable(name):
            interface = getattr(value, "__cuda_array_interface__", None)
            if interface is None:
                is_known = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
                return value if is_known or not hasattr(value, "__dlpack__") else np.from_dlpack(value)
            # The interface of a tensor of torch shows its memory, in which these are not applied yet.
            for lazy in ("conj", "neg"):
                if getattr(value, f"is_{lazy}", bool)():
                    raise TypeError(f"its .resolve_{lazy}() was not called")
        return self._copy(name, interface)

    def close(self) -> None:
        """Give all pinned memory back; what was copied there is gone."""
        while self._pinned:
            _, (_, memory, context) = self._pinned.popitem()
            # A context that its owner has destroyed took its memory along.
            if not self._driver["cuCtxPushCurrent_v2"](context):
                self._driver["cuMemFreeHost"](memory)
                self._driver["cuCtxPopCurrent_v2"](ctypes.byref(context))

    def _copy(self, name: str, interface: Mapping[str, Any]) -> np.ndarray:
        shape, dtype = interface["shape"], np.dtype(interface["typestr"])
        strides = interface.get("strides") or [dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
        if interface.get("mask") is not None or min(strides, default=0) < 0:
            raise TypeError(f"field {name!r} on a GPU is masked or runs backwards: send a contiguous copy of it")
        if 0 in shape:
            return np.empty(shape, dtype)
        size = dtype.itemsize + sum((num - 1) * stride for num, stride in zip(shape, strides, strict=True))
        address, number, context = ctypes.c_uint64(interface["data"][0]), ctypes.c_int(), ctypes.c_void_p()
        call = partial(self._call, name)
        call("cuInit", 0)
        call("cuPointerGetAttribute", ctypes.byref(number), 9, address)  # the ordinal of its device
        # The context in which it was made, such as PyCUDA's own. Memory of a pool has none, or it is an error to ask:
        # that is of the primary one, in which other libraries work, and which they keep.
        self._driver["cuPointerGetAttribute"](ctypes.byref(context), 1, address)
        if is_primary := not context:
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        call("cuCtxPushCurrent_v2", context)
        try:
            capacity, memory, owner = self._pinned.pop(name, (0, ctypes.c_void_p(), context))
            if capacity < size:
                if capacity:
                    call("cuMemFreeHost", memory)
                owner = context
                call("cuMemHostAlloc", ctypes.byref(memory), ctypes.c_size_t(size), 1)  # pinned for all contexts
            self._pinned[name] = max(size, capacity), memory, owner
            call("cuCtxSynchronize")
            call("cuMemcpyDtoH_v2", memory, address, ctypes.c_size_t(size))
        finally:
            call("cuCtxPopCurrent_v2", ctypes.byref(context))
            if is_primary:
                call("cuDevicePrimaryCtxRelease_v2", number)
        return np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(memory.value or 0), 0, strides)

    def _call(self, name: str, function: str, *arguments: Any) -> None:
        try:
            self._driver = self._driver or ctypes.CDLL(DRIVER)
            problem = f"{function} failed with error {code}" if (code := self._driver[function](*arguments)) else ""
        except OSError as error:
            problem = f"CUDA's driver is not here ({error})"
        if problem:
            raise TypeError(f"field {name!r} is on a GPU, and {problem}: send array.cpu() or array.get()")
