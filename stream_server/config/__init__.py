"""study.json: read, resolved and checked before anything starts.

    config = load("study.json", ["training.batch_size=32"])
    config.buffer.capacity, config.study.fields["temperature"].shape, config.user["lr"]

Importing this package and loading a study imports neither torch nor scipy nor mpi4py.

Offers: command_line, job_sections, loading, parameters, placeholders, problems, samples, sections, study,
    training_sections.
May import: storage.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Keep pydantic from reading the metadata of every package that is installed, in search of plugins of its own."""
    before = os.environ.get(_PLUGINS)
    os.environ[_PLUGINS] = "__all__"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PLUGINS]
        else:
            os.environ[_PLUGINS] = before


with _without_plugins():
    from stream_server.config.changes import Difference, check_continuation, differences
    from stream_server.config.loading import load, load_plain
    from stream_server.config.rules import check_ranks
    from stream_server.config.study import StudyConfig, json_schema
    from stream_server.config.values import walltime_s

__all__ = [
    "Difference",
    "StudyConfig",
    "check_continuation",
    "check_ranks",
    "differences",
    "json_schema",
    "load",
    "load_plain",
    "walltime_s",
]
