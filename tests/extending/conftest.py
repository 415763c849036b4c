from pathlib import Path

import pytest

from tests.extending.examples import write_examples
from tests.support.studies import StudyFolder


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    """A study with all files of docs/guide/extending.md beside its study.json."""
    study = StudyFolder(tmp_path / "heat")
    write_examples(study.path)
    return study
