"""The list of what restarts have changed."""

import pytest

from stream_server.server.progress.changes import Changes


def test_a_start_tells_what_it_changes_itself_and_keeps_what_earlier_ones_did() -> None:
    first = Changes(batch=10)
    first.note("training.batch_size", before=4, now=8, source="study.json")
    second = Changes(batch=30)
    second.load_state_dict(first.state_dict())
    second.note("learning rate", before=1e-3, now=3e-4, source="server.py", note="optimizer state kept")
    assert [change.with_batch for change in second] == [
        "from batch 10: training.batch_size 4 → 8, from study.json",
        "from batch 30: learning rate 0.001 → 0.0003, from server.py; optimizer state kept",
    ]
    assert [change.name for change in second.new] == ["learning rate"]


def test_a_long_value_is_cut_off_once() -> None:
    changes = Changes()
    table = {"rows": ["a"] * 100_000}
    changes.note("user.table", before={"rows": []}, now=table, source="study.json")
    changes.note("user.path", before="a" * 500, now="b", source="study.json")
    (_, other), (first, _) = (changes.state_dict() for _ in range(2))
    assert first["before"] == {"rows": []}
    assert (len(first["now"]), first["now"][-1], len(other["before"])) == (200, "…", 200)
    told = str(changes.new[0])
    assert told.startswith('user.table {"rows": []} → {"rows": ["a", "a", ')
    assert told.endswith("…, from study.json")


def test_a_list_that_was_not_saved_so_is_refused() -> None:
    with pytest.raises(ValueError, match="batch"):
        Changes().load_state_dict([{"name": "x", "before": 1, "now": 2, "source": "y", "batch": "z"}])
