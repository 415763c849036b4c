"""Torch as the framework of a study.

Why: docs/decisions/0090-torchs-compiler.md
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stream_server.errors import ConfigError
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.training.torch.devices import device_of
from stream_server.server.training.torch.precision import check_precision
from stream_server.server.training.torch.state import plain, restored
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.collate import NumpyCollate
from stream_server.server.user.stream_server import StreamServer
from stream_server.server.user.torch_server import TorchServer

DTYPES = {
    "32-true": torch.float32,
    "64-true": torch.float64,
    "bf16-mixed": torch.float32,
    "bf16-true": torch.bfloat16,
    "16-mixed": torch.float32,
    "16-true": torch.float16,
}


class TorchCollate(NumpyCollate):
    """Stacks arrays, numbers and tensors into tensors on the CPU, floating and complex ones in the `precision`."""

    def __init__(self, precision: str = "32-true") -> None:
        self._torch_dtype = DTYPES[precision]
        self._torch_complex = torch.complex128 if precision == "64-true" else torch.complex64
        super().__init__(np.float64 if precision == "64-true" else np.float32)

    def is_array(self, value: Any) -> bool:
        # Asking whether an array is a tensor takes longer than all else.
        return type(value) is np.ndarray or isinstance(value, torch.Tensor) or super().is_array(value)

    def stack(self, arrays: Sequence[Any]) -> Any:
        if isinstance(arrays[0], torch.Tensor):
            return self._as_precision(torch.stack(list(arrays)))
        return self._as_precision(torch.from_numpy(super().stack(arrays)))

    def convert_array(self, array: Any) -> Any:
        if not isinstance(array, torch.Tensor):
            # A tensor cannot say that its memory is read-only, so torch warns of such arrays: they are copied.
            array = super().convert_array(array)
            array = torch.from_numpy(array if array.flags.writeable else array.copy())
        return self._as_precision(array)

    def copy_array(self, array: Any) -> Any:
        return array.clone()

    def is_writable(self, value: Any) -> bool:
        # Sparse ones have no memory of their own that could be read as one piece.
        return isinstance(value, np.ndarray) or (isinstance(value, torch.Tensor) and value.layout is torch.strided)

    def bytes_of(self, array: Any) -> bytes:
        if not isinstance(array, torch.Tensor):
            return super().bytes_of(array)
        return super().bytes_of(array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())

    def address_of(self, array: Any) -> int:
        return array.data_ptr() if isinstance(array, torch.Tensor) else super().address_of(array)

    def _as_precision(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == self._torch_dtype or not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        converted = tensor.to(self._torch_complex if tensor.is_complex() else self._torch_dtype)
        if np.geterr()["over"] == "raise" and bool(torch.isinf(converted).sum() > torch.isinf(tensor).sum()):
            raise FloatingPointError("overflow encountered in a conversion")
        return converted


class TorchFramework:
    """Torch."""

    trains_model = True

    def check_precision(self, precision: str, device: str) -> None:
        check_precision(precision, device_of(SoloRanks(), device))

    def make_collate(self, precision: str) -> TorchCollate:
        return TorchCollate(precision)

    def make_step(self, server: StreamServer, ranks: Ranks) -> TorchStep:
        assert isinstance(server, TorchServer)
        if server.config is None:
            raise ConfigError("a TorchServer trains with a study's config only")
        return TorchStep(server, ranks, server.config)

    def plain(self, state: Any, name: str) -> Any:
        return plain(state, name)

    def restored(self, state: Any, own: Any = None) -> Any:
        return restored(state, own)

    def device_bytes(self) -> Mapping[str, int]:
        """The GPU memory that torch has allocated, now and at its peak; empty if the GPU was never used."""
        cuda: Any = torch.cuda
        if not cuda.is_initialized():
            return {}
        now, peak = cuda.memory_allocated(), cuda.max_memory_allocated()
        return {"memory/device_bytes": now, "memory/device_peak_bytes": peak}
