"""Which files are ours, and which may be somebody else's: what needs a second user is in tests/security."""

from pathlib import Path

from stream_server.storage.ownership import first_untrusted


def test_a_folder_of_ours_is_trusted_unless_a_file_in_it_has_another_name(tmp_path: Path) -> None:
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "deep" / "file").write_bytes(b"")
    assert first_untrusted(tmp_path / "run") is None
    (tmp_path / "elsewhere").hardlink_to(tmp_path / "run" / "deep" / "file")
    found = first_untrusted(tmp_path / "run")
    assert found == (tmp_path / "run" / "deep" / "file", "is a file with another name elsewhere (a hard link)")
