"""Optional packages: which extra of Stream Server has each, and what to do where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from stream_server.errors import ConfigError

EXTRAS = {
    "adios2": "adios",
    "bokeh": "dashboard",
    "h5py": "hdf5",
    "matplotlib": "analysis",
    "meshio": "follow",
    "pandas": "analysis",
    "prometheus_client": "prometheus",
    "pyarrow": "analysis",
}


@contextmanager
def extra_packages(needed_by: str) -> Iterator[None]:
    """Import packages of an extra within; `needed_by` is the subject of the message.

    Raises:
        ConfigError: one is not installed; the message says how to install the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        name, command = package.replace("_", "-"), f"pip install '.[{EXTRAS[package]}]'"
        raise ConfigError(
            f"{needed_by} needs {name}, which is not installed: {command} in the folder of Stream Server, or with its "
            "wheel in the place of the dot"
        ) from error
