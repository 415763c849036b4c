"""Processes with this folder on PYTHONPATH start sooner, and do the same.

They import the compiler of torch only if they use it: Fabric, and every optimizer of torch, import `torch._dynamo`,
which takes a third of the start of a rank, to ask it for nothing that matters where no model is compiled. Until
something else of it is asked for, three stand-ins answer.

They take the compiled methods of dataclasses from a file: a rank has two hundred of them, for each of which Python
compiles a few methods from text, which takes a seventh of its start. `WRITE_METHODS` in the environment makes a process
write the file at its end.

They leave out the docstrings that NumPy writes into its compiled functions at each import.

Nothing is imported here that a process may do without.
"""

import sys

NAME = "torch._dynamo"
DOCSTRINGS = ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")


class Methods:
    """The code of texts that were compiled once."""

    def __init__(self):
        import marshal
        import os

        self._loads, self._dumps = marshal.loads, marshal.dumps
        folder = os.path.join(os.path.dirname(__file__), "__pycache__")
        self.path = os.path.join(folder, f"methods.{sys.implementation.cache_tag}")
        try:
            with open(self.path, "rb") as file:
                self.codes = marshal.load(file)
        except (OSError, EOFError, ValueError, TypeError):
            self.codes = {}
        if "WRITE_METHODS" in os.environ:
            import atexit

            atexit.register(self.write)

    def run(self, text, *namespaces):
        """Run the text, as `exec` does."""
        if text in self.codes:
            code = self._loads(self.codes[text])
        else:
            code = compile(text, "<string>", "exec")
            self.codes[text] = self._dumps(code)
        exec(code, *namespaces)

    def write(self):
        """Leave all of them for others, which find the file as it was or as it is."""
        import marshal
        import os

        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        draft = f"{self.path}.{os.getpid()}"
        with open(draft, "wb") as file:
            marshal.dump(self.codes, file)
        os.replace(draft, self.path)


class OfNoModel(type):
    """Says of no object that it is a compiled model, as long as there can be none."""

    def __instancecheck__(cls, instance):
        real = sys.modules[NAME]
        return real.OptimizedModule is not cls and isinstance(instance, real.OptimizedModule)


class OptimizedModule(metaclass=OfNoModel):
    """Stands for the class of compiled models."""


def disable(function, *_, **__):
    """Let nothing compile a function."""
    return function


def graph_break():
    """End what is compiled here."""


class StandIn:
    """Loads what answers for `torch._dynamo` until more of it is needed."""

    @staticmethod
    def create_module(spec):
        module = type(sys)(NAME)
        members = {"disable": disable, "graph_break": graph_break, "OptimizedModule": OptimizedModule}
        module.__dict__.update(members, __getattr__=attribute_of_dynamo)
        return module

    @staticmethod
    def exec_module(module):
        pass


class Empty:
    """Loads a module without anything in it."""

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        pass


class Loaded:
    """Gives a module that the import of its package has brought along."""

    def __init__(self, module):
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        module.__spec__ = self.spec


class Finder:
    """Finds the stand-in, and makes way for the real one when a part of it is imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "dataclasses":
            return found_without_us(name, path, keep_methods)
        if name in DOCSTRINGS:
            return type(sys.__spec__)(name, Empty)
        if name == NAME and path is not None:
            spec = found_without_us(name, path)
            spec.loader = StandIn
            return spec
        if name.startswith(NAME + "."):
            make_way()
            if (module := sys.modules.get(name)) is not None:
                # The import system takes the spec that such a module has for the one that was asked for.
                module.__spec__ = type(sys.__spec__)(name, Loaded(module))
                return module.__spec__
        return None


def found_without_us(name, path, then=None):
    """The spec that the other finders have; `then` is called with the module when it was run."""
    others = (finder for finder in sys.meta_path if finder is not Finder)
    spec = next(filter(None, (finder.find_spec(name, path) for finder in others)), None)
    if spec is not None and then is not None:
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            then(module)

        spec.loader.exec_module = exec_module
    return spec


def keep_methods(module):
    """Let dataclasses run its texts through the file."""
    module.exec = Methods().run


def attribute_of_dynamo(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(make_way(), name)


def make_way():
    """Import the real compiler in the place of the stand-in."""
    import importlib

    if Finder in sys.meta_path:
        sys.meta_path.remove(Finder)
        sys.modules.pop(NAME, None)
    return importlib.import_module(NAME)


sys.meta_path.insert(0, Finder)
if "dataclasses" in sys.modules:
    keep_methods(sys.modules["dataclasses"])
