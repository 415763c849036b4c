"""A folder with a record, open for reading."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from stream_server.config import StudyConfig
from stream_server.errors import DamagedRecord
from stream_server.server import parts
from stream_server.server.record.dealing import Dealing
from stream_server.server.record.facts import FILE_NAME, RecordFacts
from stream_server.server.record.layout import Layout
from stream_server.server.record.rank_record import RankRecord

SUBFOLDER = "record"


class Recording:
    """A record and the files of its ranks. A context manager, which holds the files open.

    `folder` is that of the record, or the output folder of the study that made it.

    Raises:
        ConfigError: there is no record that this version can read.
        DamagedRecord: a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / SUBFOLDER if (folder / SUBFOLDER / FILE_NAME).exists() else folder
        self.facts = RecordFacts.read(self.folder)
        with ExitStack() as stack:
            self.files: list[RankRecord] = []
            for rank in range(self.facts.ranks):
                self.files.append(RankRecord(self.folder, rank))
                stack.callback(self.files[-1].close)
                self._check_study(self.files[-1])
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def check(self, config: StudyConfig, parameters: Sequence[str]) -> None:
        """Refuse a study that cannot be trained from this record; `parameters` are the names of its parameters.

        Raises:
            ConfigError: what of study.json is another than in the record.
        """
        self.facts.check(config, parameters, where=str(self.folder))

    def _check_study(self, record: RankRecord) -> None:
        for name, study in record.studies.items():
            if study != self.facts.identity:
                raise DamagedRecord(
                    f"{self.folder / name} is of another study than {FILE_NAME} beside it. Put back copies of both"
                )

    def dealing(self, config: StudyConfig, num_ranks: int) -> Dealing:
        """How the samples are dealt to the ranks of a study."""
        return Dealing(
            num_recorded=len(self.files),
            num_ranks=num_ranks,
            routing=parts.routing(config),
            time_steps=parts.time_steps(config),
        )

    def dtypes(self, config: StudyConfig) -> dict[str, npt.DTypeLike]:
        """In which types a study keeps the fields: as it says, or else in those in which they were recorded."""
        layouts = [layout for record in self.files for layout in record.layouts]
        return {
            name: np.dtype(spec.dtype) if spec.dtype else _common_dtype(name, layouts)
            for name, spec in config.study.fields.items()
        }


def _common_dtype(field: str, layouts: Sequence[Layout]) -> npt.DTypeLike:
    recorded = {spec.dtype for layout in layouts for spec in layout.fields if spec.name == field}
    return np.result_type(*sorted(recorded)).newbyteorder("=") if recorded else np.dtype(np.float64)
