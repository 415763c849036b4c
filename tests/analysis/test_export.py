"""The tidy table."""

from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import pytest

from stream_server.analysis import export as module
from stream_server.analysis.export import export
from stream_server.analysis.reading import RunFolder
from stream_server.errors import ConfigError
from tests.analysis.logged_run import log_run

pytestmark = pytest.mark.slow

LONG = ["run", "batch", "update", "sample", "wall_s", "name", "value"]


def table(runs: list[RunFolder], *, wide: bool = False, per_rank: bool = False) -> pd.DataFrame:
    return pd.DataFrame(module.table(runs, wide=wide, per_rank=per_rank))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(log_run(tmp_path / "heat"))


def test_the_long_table_has_a_row_for_every_value(run: RunFolder) -> None:
    rows = table([run])
    assert list(rows.columns) == LONG
    losses = rows[rows["name"] == "train/loss"]
    assert losses["batch"].tolist() == [10, 20, 30, 40, 50]
    assert losses["value"].tolist() == [1 / 10, 1 / 20, 1 / 30, 1 / 40, 1 / 50]
    first = losses.iloc[0]
    assert (first["run"], first["update"], first["sample"], first["wall_s"]) == ("heat", 5, 100, 1.0)
    validations = rows[rows["name"] == "val/loss"]
    assert validations[["batch", "value"]].to_numpy().tolist() == [[20, 0.1], [40, 0.05]]


def test_a_wide_table_has_a_row_for_every_batch_with_its_validation_in_it(run: RunFolder) -> None:
    rows = table([run], wide=True)
    assert list(rows.columns[:5]) == LONG[:5]
    assert rows["batch"].tolist() == [10, 20, 30, 40, 50]
    assert rows["wall_s"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert rows["val/loss"].dropna().tolist() == [0.1, 0.05]
    assert rows["train/loss"].notna().all()


def test_several_runs_share_a_table(run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(log_run(tmp_path / "wave", range(10, 30, 10)))
    rows = table([run, other])
    assert rows[rows["name"] == "train/loss"].groupby("run").size().to_dict() == {"heat": 5, "wave": 2}


def test_what_single_ranks_logged_has_a_column_for_the_rank(run: RunFolder) -> None:
    (run.metrics / "rank-1.jsonl").write_text(
        '{"batch": 10, "update": 5, "sample": 100, "wall_s": 1.0, "train/loss": 0.7}\n'
    )
    rows = table([run], per_rank=True)
    assert list(rows.columns) == ["run", "rank", *LONG[1:]]
    assert rows[(rows["rank"] == 1)]["value"].tolist() == [0.7]
    assert "val/loss" not in set(rows["name"])
    wide = table([run], wide=True, per_rank=True)
    assert wide[wide["batch"] == 10]["train/loss"].tolist() == [0.1, 0.7]


@pytest.mark.parametrize(("name", "read"), [("m.csv", pd.read_csv), ("m.parquet", pd.read_parquet)])
@pytest.mark.parametrize("wide", [False, True])
def test_a_file_holds_the_table(run: RunFolder, tmp_path: Path, name: str, read: object, wide: bool) -> None:
    assert callable(read)
    num_rows = export([run], tmp_path / name, wide=wide)
    pd.testing.assert_frame_equal(read(tmp_path / name), table([run], wide=wide), check_dtype=False)
    assert num_rows == len(table([run], wide=wide))


def test_numbers_and_missing_values_stand_in_a_csv_file_as_other_programs_write_them(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "metrics.jsonl").write_text('{"batch": 10, "a": 1}\n{"batch": 20, "a": null, "b,c": 3}\n')
    export([RunFolder(tmp_path)], tmp_path / "m.csv", wide=True)
    assert (tmp_path / "m.csv").read_text() == (
        f'run,batch,update,sample,wall_s,a,"b,c"\n{tmp_path.name},10,,,,1.0,\n{tmp_path.name},20,,,,,3.0\n'
    )


def test_a_value_that_was_not_finite_is_a_row_without_value(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "metrics.jsonl").write_text('{"batch": 10, "a": null, "b": 1.0}\n')
    rows = table([RunFolder(tmp_path)])
    assert rows["name"].tolist() == ["a", "b"]
    assert rows["value"].isna().tolist() == [True, False]


def test_a_file_of_another_kind_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.parquet or \.csv"):
        export([RunFolder(tmp_path)], tmp_path / "metrics.xlsx")


def test_a_file_that_cannot_be_written_is_named(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere/m\.csv cannot be written"):
        export([run], tmp_path / "nowhere" / "m.csv")
