"""torch's compiler, loaded when something is compiled.

Fabric asks it whether a model is compiled, and every optimizer of torch tells it at each step what not to compile. With
all that it brings along this would be 1.2 s of a core at every start of a rank (measured with torch 2.13), although
neither means anything before something is compiled. So a stand-in answers until then.
"""

import importlib
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

COMPILER = "torch._dynamo"


class _KnownToTheCompiler(type):
    def __instancecheck__(cls, it: object) -> bool:
        compiler = sys.modules.get(COMPILER)
        return compiler is not None and not isinstance(compiler, Unloaded) and isinstance(it, compiler.OptimizedModule)


class OptimizedModule(metaclass=_KnownToTheCompiler):
    """Stands for the compiler's class of compiled modules, of which there is none before there is a compiler."""


class Unloaded(ModuleType):
    """Answers what torch asks before anything is compiled, and puts the compiler in its place for everything else."""

    trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.__spec__ = find_spec(COMPILER)
        self.__file__ = self.__spec__.origin if self.__spec__ else None
        self._lock = threading.Lock()
        self._left_alone: list[Callable[..., Any]] = []

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Nothing is traced: there is no graph that this could end."""

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """`fn` as it is for torch itself, which asks once and keeps the answer until the compiler comes."""
        if fn is None or options != {"wrapping": False}:
            return self._load().disable(fn, recursive, **options)
        self._left_alone.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        # Whoever looks through all modules asks for dunder names; the import of a submodule asks for this one.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return getattr(self._load(), name)

    def _load(self) -> ModuleType:
        with self._lock:
            if sys.modules.get(COMPILER) is self:
                del sys.modules[COMPILER], torch._dynamo
                for fn in self._left_alone:
                    vars(fn).pop("__dynamo_disable", None)
        return importlib.import_module(COMPILER)


def without_path() -> ModuleType:
    """A module for `from torch._dynamo import OptimizedModule`, which asks a package for its path first."""
    module = ModuleType(COMPILER)
    module.OptimizedModule = OptimizedModule  # type: ignore[attr-defined]
    return module


def load_when_needed() -> None:
    """Put off the import of the compiler, unless it is there already."""
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = torch._dynamo = Unloaded()
