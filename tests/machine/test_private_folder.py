"""The short folder of sockets, and the addresses in it."""

from pathlib import Path

from stream_server.machine import private_folder


def test_the_folder_of_an_address_is_the_one_that_it_was_made_of() -> None:
    folder = private_folder.new_name()
    assert folder.name.startswith(private_folder.PREFIX)
    assert private_folder.of(private_folder.link(folder)) == folder
    assert not folder.exists()


def test_no_folder_but_our_own_is_removed(tmp_path: Path) -> None:
    for name in ("precious", f"{private_folder.PREFIX}open"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
        private_folder.remove(tmp_path / name)
        assert (tmp_path / name).exists()
    with private_folder.temporary() as folder:
        assert folder.exists()
        private_folder.remove(folder)
        assert not folder.exists()
