from pathlib import Path

import pytest

from tests.support.studies import StudyFolder


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "heat")
