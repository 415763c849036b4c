"""Processes with this folder on PYTHONPATH import the compiler of torch only if they use it.

Fabric, and every optimizer of torch, import `torch._dynamo`, which takes a third of the start of a rank, to ask it for
nothing that matters where no model is compiled. Until something else of it is asked for, three stand-ins answer.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class _OfNoModel(type):
    """Says of no object that it is a compiled model, as long as there can be none."""

    def __instancecheck__(cls, instance: object) -> bool:
        real: Any = sys.modules[NAME]
        return real.OptimizedModule is not cls and isinstance(instance, real.OptimizedModule)


class OptimizedModule(metaclass=_OfNoModel):
    """Stands for the class of compiled models."""


def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """Let nothing compile a function."""
    return function


def graph_break() -> None:
    """End what is compiled here."""


class StandIn(Loader):
    """Answers for `torch._dynamo` until more of it is needed."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make what answers."""
        module = ModuleType(NAME)
        module.__dict__.update(
            disable=disable, graph_break=graph_break, OptimizedModule=OptimizedModule, __getattr__=_attribute
        )
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is to be run."""


class Loaded(Loader):
    """Gives a module that the import of its package has brought along."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Give it."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It has been run."""


class Finder(MetaPathFinder):
    """Finds the stand-in, and makes way for the real one when a part of it is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As any other finder."""
        if name == NAME and path is not None:
            real = PathFinder.find_spec(name, path)
            spec = ModuleSpec(name, StandIn(), is_package=True)
            spec.submodule_search_locations = real and real.submodule_search_locations
            return spec
        if name.startswith(f"{NAME}."):
            _make_way()
            return ModuleSpec(name, Loaded()) if name in sys.modules else None
        return None


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_make_way(), name)


def _make_way() -> ModuleType:
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
        del sys.modules[NAME]
    return importlib.import_module(NAME)


finder = Finder()
sys.meta_path.insert(0, finder)
