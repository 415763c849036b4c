"""File systems that lack something, in the place of those that are here."""

import errno
import fcntl
import os
import stat

import pytest


def without_locks(monkeypatch: pytest.MonkeyPatch, error: int = errno.ENOSYS) -> None:
    """No file can be locked, as on Lustre without its mount option flock."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)


def without_sync_of_folders(monkeypatch: pytest.MonkeyPatch, error: int = errno.EINVAL) -> None:
    """No folder can be synced, as on CIFS; files can."""
    fsync = os.fsync

    def fsync_of_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(error, os.strerror(error))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_of_files)
