"""Python imports this first of all: it notes whenever something is unpickled, with the place, in UNPICKLED.

UNPICKLED.watched lists the command lines of all processes that did so.
"""

import _pickle
import importlib.abc
import importlib.util
import os
import pickle
import sys
import traceback


def note(what):
    with open(os.environ["UNPICKLED"], "a") as file:
        file.write(f"{what} in process {os.getpid()}:\n{''.join(traceback.format_stack()[:-2])}\n")


def noted_class(name, unpickler):
    class Noted(unpickler):
        def __init__(self, *args, **options):
            note(name)
            super().__init__(*args, **options)

    return Noted


def noted_call(name, function):
    def call(*args, **options):
        note(name)
        return function(*args, **options)

    return call


class TorchFinder(importlib.abc.MetaPathFinder):
    """Torch has an unpickler of its own, which is wrapped when it is imported."""

    name = "torch._weights_only_unpickler"

    def find_spec(self, fullname, path, target=None):
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        run = spec.loader.exec_module

        def run_and_wrap(module):
            run(module)
            module.Unpickler = noted_class(fullname, module.Unpickler)

        spec.loader.exec_module = run_and_wrap
        return spec


pickle.Unpickler = _pickle.Unpickler = noted_class("pickle.Unpickler", _pickle.Unpickler)
pickle._Unpickler = noted_class("pickle._Unpickler", pickle._Unpickler)
pickle.load = _pickle.load = noted_call("pickle.load", _pickle.load)
pickle.loads = _pickle.loads = noted_call("pickle.loads", _pickle.loads)
sys.meta_path.insert(0, TorchFinder())

with open(os.environ["UNPICKLED"] + ".watched", "a") as file:
    file.write(" ".join(sys.orig_argv) + "\n")
