"""Links on the way to a file: those of ours are followed, as the system follows them."""

import errno
from pathlib import Path

import pytest

from stream_server.storage.links import open_by_own_links


def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    with pytest.raises(OSError, match="symbolic links") as caught:
        open_by_own_links(str(tmp_path / "there" / "file"), 0)
    assert caught.value.errno == errno.ELOOP
