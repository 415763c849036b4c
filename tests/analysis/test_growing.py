"""A file that grows is read line by line, and again from its beginning once it is another one."""

from pathlib import Path

import pytest

from stream_server.analysis.growing import GrowingFile
from stream_server.storage.disk import replace_file


def numbers(path: Path) -> GrowingFile[int]:
    return GrowingFile(path, lambda lines, first: [int(line) for line in lines.splitlines()])


def test_only_whole_lines_are_taken_and_each_of_them_once(tmp_path: Path) -> None:
    path, file = tmp_path / "n", numbers(tmp_path / "n")
    file.update()
    assert file.items == []
    with path.open("a", buffering=1) as writer:
        for text, known in (("1\n2", [1]), ("0\n", [1, 20]), ("", [1, 20]), ("3\n", [1, 20, 3])):
            writer.write(text)
            writer.flush()
            file.update()
            assert file.items == known
    assert file.num_resets == 1


@pytest.mark.parametrize("content", [b"1\n", b"1\n3\n4\n5\n6\n7\n", b""])
@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_file_that_was_rewritten_is_read_again_also_when_it_has_grown_since(
    tmp_path: Path, content: bytes, is_replaced: bool
) -> None:
    path, file = tmp_path / "n", numbers(tmp_path / "n")
    path.write_bytes(b"1\n2\n3\n")
    file.update()
    before = file.items
    if is_replaced:
        replace_file(path, content)
    else:
        path.write_bytes(content)
    file.update()
    assert file.items == [int(line) for line in content.split()]
    assert before == [1, 2, 3]


def test_a_damaged_line_is_an_error_until_it_is_mended(tmp_path: Path) -> None:
    path, file = tmp_path / "n", numbers(tmp_path / "n")
    path.write_bytes(b"1\n")
    file.update()
    path.write_bytes(b"1\nx\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="x"):
            file.update()
        assert file.items == [1]
    path.write_bytes(b"1\n2\n")
    file.update()
    assert file.items == [1, 2]
    path.unlink()
    file.update()
    assert file.items == []
