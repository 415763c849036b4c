"""The reads of gradients in a `training_step` that leaves it to the study to make them afterwards."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

import stream_server


class Reader(Enum):
    """What reads a gradient; the value says what it does."""

    CLIPPING = "clips gradients"
    SCALER = "scales its loss by a GradScaler"
    USER = "reads the gradient of a parameter"


# Of what is installed beside torch, and of ours: to clear gradients that are none does no harm.
_FOLDERS = (str(Path(torch.__file__).parents[1]), str(Path(stream_server.__file__).parent))


@contextmanager
def watching_reads(parameters: Iterable[Tensor], tell: Callable[[Reader], None]) -> Iterator[None]:
    """Within, `tell` hears of each read of the gradient of one of these, and of each loss that is scaled.

    Reads of installed packages do not count, apart from clipping.
    """
    ids = set(map(id, parameters))
    gradient: Any = Tensor.grad
    scale = torch.amp.GradScaler.scale

    def read(parameter: Tensor) -> Any:
        file = sys._getframe(1).f_code.co_filename
        if id(parameter) in ids and (file == clip_grad.__file__ or not file.startswith(_FOLDERS)):
            tell(Reader.CLIPPING if file == clip_grad.__file__ else Reader.USER)
        return gradient.__get__(parameter)

    def scaled(scaler: Any, outputs: Any) -> Any:
        if scaler.is_enabled():
            tell(Reader.SCALER)
        return scale(scaler, outputs)

    nn.Parameter.grad = property(read, gradient.__set__, gradient.__delete__)  # type: ignore[assignment]
    torch.amp.GradScaler.scale = scaled  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del nn.Parameter.grad
        torch.amp.GradScaler.scale = scale  # type: ignore[method-assign]
