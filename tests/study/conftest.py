"""The study that whole-study tests run, and the way they run it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.study.runs import LiveRun, Run, run_study, start_study

NUMPY_STUDY = Path(__file__).parent / "numpy_study" / "study.json"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """`run(num_ranks=2, mpi="openmpi", settings={...})` runs the NumPy study to its end."""

    def run(study: Path = NUMPY_STUDY, **options: Any) -> Run:
        return run_study(study, tmp_path / "run", **options)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., AbstractContextManager[LiveRun]]:
    """`with start(num_ranks=2, …) as live:` runs the NumPy study beside the test."""

    def start(study: Path = NUMPY_STUDY, **options: Any) -> AbstractContextManager[LiveRun]:
        return start_study(study, tmp_path / "run", **options)

    return start
