"""The state that a rank saves, as it is between two steps."""

from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.server.checkpoint.capture import StudyCapture


class ReachedError(Exception):
    pass


def test_no_user_code_runs_while_its_state_is_saved() -> None:
    calls: list[str] = []

    def synchronize() -> None:
        calls.append("synchronized")
        raise ReachedError

    unused: Any = None
    capture = StudyCapture(
        config=unused,
        ranks=unused,
        incarnation=1,
        base=0,
        source=unused,
        buffer=unused,
        stream=SimpleNamespace(quiesce=lambda: calls.append("settled")),  # type: ignore[arg-type]
        server=unused,
        step=SimpleNamespace(synchronize=synchronize),  # type: ignore[arg-type]
        progress=unused,
        callbacks=unused,
        wall_s=unused,
        threads=(),
        parts={},
    )
    with pytest.raises(ReachedError):
        capture.capture()
    assert calls == ["settled", "synchronized"]
