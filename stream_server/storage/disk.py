"""The disk: what must survive a crash is written through this module, and through nothing else.

All changes are made by functions of `os`, in whose place a test may put one that notes what is done, or that fails.
Reading goes past it. Syncing a file puts its content on disk; its name is there once its folder was synced, too.

In a folder that others may write they can rename ours, and put a link to another one of ours in its place. Paths below
a folder that is `held` therefore lead into the folder that was opened, whatever its name leads to by then.

Why: docs/decisions/0069-held-folders-and-links.md
"""

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from stream_server.storage.links import OPEN_FILES, end_of, open_by_own_links
from stream_server.storage.ownership import OTHERS, is_ours, name_of, require_ours

PRIVATE = 0o600
BY_UMASK = 0o644
# Largest untrusted text file that is read, since it is read whole.
MAX_TEXT_BYTES = 64 << 20
# The same of a text that has a line for each simulation, attempt or batch.
MAX_TABLE_BYTES = 1 << 30
# A read asks for the memory of all that it may give.
_CHUNK_BYTES = 1 << 20
# Lustre without its mount option flock has no locks, nor has NFS while its lock service is away. Others say that they
# know no such call, or that nobody may make it.
_WITHOUT_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EACCES})
# CIFS and some file systems of FUSE sync files, and no folders, or only what is open to be written.
_WITHOUT_SYNC = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EBADF, errno.EISDIR}
)

Opener = Callable[[str, int], int]

log = logging.getLogger(__name__)
_warned_of = set[int]()
# The path of each folder and its descriptor, the newest first.
_held: list[tuple[str, int]] = []


class NoLocks(OSError):
    """The file system has no locks."""


class UnusableFile(OSError):
    """The path leads to a pipe, a device, a socket, or a file larger than may be read."""


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Within the block, all that this module does below a folder is done in the one that has this name now.

    It is made unless it is there.

    Raises:
        OSError: it cannot be made or opened.
    """
    make_folder(folder)
    this = (os.fspath(folder), open_folder(folder))
    _held.insert(0, this)
    try:
        yield
    finally:
        _held.remove(this)
        os.close(this[1])


def open_folder(folder: Path) -> int:
    """Open a folder, through no link of somebody else, whatever takes its name meanwhile.

    Raises:
        PermissionError: there is such a link, or it is somebody else's.
        OSError: it cannot be opened.
    """
    with _at(folder) as place:
        descriptor = open_by_own_links(place, os.O_RDONLY | os.O_DIRECTORY)
    if not is_ours(status := os.fstat(descriptor)):
        os.close(descriptor)
        _refuse_result(f"It belongs to {name_of(status.st_uid)}", folder)
    return descriptor


def place_of(path: Path | str) -> str:
    """The path by which the system is asked for what is at a path: by the descriptor of the folder that is held.

    Where there is no /proc, or nothing is held, it is the path itself.
    """
    path = os.fspath(path)
    for folder, descriptor in tuple(_held):
        below = path.removeprefix(folder)
        if (not below or below.startswith("/")) and below != path and os.path.isdir(OPEN_FILES):
            return f"{OPEN_FILES}/{descriptor}{below or '/.'}"
    return path


def is_in_place(folder: Path) -> bool:
    """Whether the name of a folder still leads to the held one, if any."""
    if (place := place_of(folder)) == os.fspath(folder):
        return True
    try:
        return os.path.samestat(os.stat(folder), os.stat(place))
    except FileNotFoundError:
        return False


def exists(path: Path) -> bool:
    return Path(place_of(path)).exists()


@contextmanager
def _at(path: Path | str) -> Iterator[str]:
    """The place of a path; an error says the path."""
    place = place_of(path)
    try:
        yield place
    except OSError as error:
        if error.filename == place:
            error.filename = os.fspath(path)
        raise


def open_regular(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a file, as an opener of `open`; whatever somebody has put in its place, reading comes to an end.

    Raises:
        UnusableFile: it is a pipe, which would be waited for, or a device, which may never end.
        OSError: it cannot be opened.
    """
    with _at(path) as place:
        return _only_a_file(os.open(place, flags | os.O_NONBLOCK | os.O_CLOEXEC, BY_UMASK), path)


def by_own_links(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a file as `open_regular` does, through no link of somebody else: one of a run that others may have written.

    Raises:
        UnusableFile: it is no ordinary file.
        PermissionError: a link on the way is somebody else's.
        OSError: it cannot be opened.
    """
    with _at(path) as place:
        return _only_a_file(open_by_own_links(place, flags | os.O_NONBLOCK, BY_UMASK), path)


def _only_a_file(descriptor: int, path: Path | str) -> int:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise UnusableFile(errno.EINVAL, "It is no ordinary file", str(path))
    return descriptor


def read_file(path: Path, *, max_bytes: int | None = MAX_TABLE_BYTES, opener: Opener = open_regular) -> bytes:
    """All of a file.

    Raises:
        UnusableFile: it is no ordinary file, or has more than `max_bytes`.
        OSError: it cannot be read.
    """
    with open(path, "rb", opener=opener) as file:
        return read_open(file, path, max_bytes=max_bytes)


def read_open(file: BinaryIO, path: Path | str, *, max_bytes: int | None) -> bytes:
    """The rest of a file that is open.

    Raises:
        UnusableFile: it has more than `max_bytes`.
        OSError: it cannot be read.
    """
    if max_bytes is None:
        return file.read()
    content, is_whole = bytearray(), False
    while not is_whole and max(len(content), os.fstat(file.fileno()).st_size) <= max_bytes:
        chunk = file.read(_CHUNK_BYTES)
        content += chunk
        is_whole = not chunk
    if not is_whole:
        raise UnusableFile(errno.EFBIG, f"It has more than {max_bytes:,} bytes", str(path))
    return bytes(content)


def read_text(
    path: Path, *, max_bytes: int = MAX_TEXT_BYTES, errors: str = "strict", opener: Opener = open_regular
) -> str:
    """All of a text in UTF-8.

    Raises:
        UnusableFile: it is no ordinary file, or has more than `max_bytes`.
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_file(path, max_bytes=max_bytes, opener=opener).decode(errors=errors)


def read_into(file: Any, memory: memoryview) -> bool:
    """Fill writable memory with the next bytes of a binary file; False if the file ends before."""
    while memory:
        num = file.readinto(memory)
        if not num:
            return False
        memory = memory[num:]
    return True


def create(path: Path, *, mode: int = BY_UMASK) -> int:
    """Make a new file and open it for writing and reading.

    Raises:
        FileExistsError: somebody else has made it.
    """
    with _at(path) as place:
        return os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def open_to_append(path: Path) -> int:
    """Open a file for reading and for writing at its end, whatever that is then; made unless it is there."""
    with _at(path) as place:
        return os.open(place, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, BY_UMASK)


def open_private_to_append(path: Path) -> int:
    """Open a file as `open_to_append` does, which only its owner may read: a user who can open a file can lock it.

    Raises:
        OSError: it is a symbolic link, belongs to somebody else, or others may write into it, among other reasons.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with _at(path) as place:
        descriptor = os.open(place, flags, PRIVATE)
    try:
        status = os.fstat(descriptor)
        require_ours(status, path)
        if status.st_mode & OTHERS:
            os.fchmod(descriptor, PRIVATE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_output(path: Path | str, flags: int) -> int:
    """Open a file that a user has named to write it, as an opener of `open`; also where others may write.

    Raises:
        PermissionError: somebody else has made it or a link on the way, or it may be linked to any file of ours.
        OSError: it is a pipe that nobody reads, among other reasons.
    """
    with _at(path) as place:
        descriptor = open_by_own_links(place, (flags & ~os.O_TRUNC) | os.O_NONBLOCK, 0o666)
    try:
        status = os.fstat(descriptor)
        if not is_ours(status):
            _refuse_result(f"It belongs to {name_of(status.st_uid)}", path)
        if stat.S_ISREG(status.st_mode):
            if status.st_nlink > 1:
                _refuse_result("It has another name elsewhere (a hard link)", path)
            if flags & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_result(why: str, path: Path | str) -> NoReturn:
    raise PermissionError(errno.EPERM, f"{why}, and is not written", str(path))


def close(descriptor: int) -> None:
    """Let go of a file; what was not synced may be lost."""
    os.close(descriptor)


def lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed, which the end of the process does, too; False if another process has it.

    Raises:
        NoLocks: its file system has none.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            with suppress(OSError):
                error.filename = os.readlink(f"{OPEN_FILES}/{descriptor}")
            raise
        raise NoLocks(error.errno, error.strerror) from error
    return True


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of it: one call may take only a part."""
    while data:
        data = data[os.write(descriptor, data) :]


def write_at(descriptor: int, data: memoryview, place: int) -> None:
    """Write all of it at a place of the file."""
    while data:
        num = os.pwrite(descriptor, data, place)
        data, place = data[num:], place + num


def start_write_back(descriptor: int, start: int, num_bytes: int) -> None:
    """Let the kernel begin to write these bytes, and drop written ones from memory."""
    os.posix_fadvise(descriptor, start, num_bytes, os.POSIX_FADV_DONTNEED)


def read_descriptor(descriptor: int) -> bytes:
    """All of an open file, whether or not a name leads to it."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def has_name(descriptor: int) -> bool:
    """Whether some name still leads to an open file, which was not removed or replaced."""
    return os.fstat(descriptor).st_nlink > 0


def truncate(file: int | Path, num_bytes: int) -> None:
    """Cut off a file, given by its descriptor or its path."""
    os.truncate(file if isinstance(file, int) else place_of(file), num_bytes)


def sync(descriptor: int) -> None:
    """Put the content of a file on disk."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Put on disk which entries a folder has; where its file system cannot do that, this is logged once."""
    with _at(folder) as place:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _WITHOUT_SYNC:
            raise
        _warn_unsynced(folder, os.fstat(descriptor).st_dev, error)
    finally:
        os.close(descriptor)


def _warn_unsynced(folder: Path, device: int, error: OSError) -> None:
    if device not in _warned_of:
        _warned_of.add(device)
        log.warning(
            "%s is on a file system that does not sync folders (%s): a power failure may take away its newest files, "
            "checkpoints among them; the end of a process loses nothing",
            folder,
            error.strerror,
        )


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there; each is on disk in the one above it.

    Raises:
        PermissionError: a link on the way is somebody else's, among other reasons.
        OSError: it cannot be made.
    """
    place = place_of(folder)
    if os.path.isdir(place):
        return
    make_folder(folder.parent)
    try:
        with _at(folder), end_of(place) as (parent, name, _):
            os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        if not os.path.isdir(place):
            raise
    sync_folder(folder.parent)


def write_file(path: Path, data: bytes) -> None:
    """Write a new file; its content is on disk when this returns.

    Raises:
        OSError: the disk is full or fails; the file is of no use.
    """
    _write_new(path, data, mode=BY_UMASK, synced=True)


def replace_file(path: Path, data: bytes) -> None:
    """Put a small file in place so that a reader of `path` finds all of it or the one before, even after a crash."""
    _put_in_place(path, data, mode=BY_UMASK, synced=True)
    sync_folder(path.parent)


def names_in(folder: Path) -> list[str]:
    """The names in a folder, none where there is no such folder.

    Raises:
        OSError: it cannot be listed. `Path.glob` of Python 3.13 and `Path.is_dir` of 3.14 find nothing then.
    """
    try:
        with _at(folder) as place:
            return os.listdir(place)
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_leftovers(path: Path) -> None:
    """Remove what was left beside `path` when who put a file in place there was killed; for its only writer."""
    for name in names_in(path.parent):
        if name.startswith(path.name) and name.endswith(".tmp"):
            remove_file(path.with_name(name))


def swap_private_file(path: Path, data: bytes) -> None:
    """Replace a small file atomically for readers of `path`, with a mode for its owner alone.

    For its only writer. After a power failure it may be empty: it is for processes that do not survive that either.
    """
    remove_leftovers(path)
    _put_in_place(path, data, mode=PRIVATE, synced=False)


def rename_file(old: Path, new: Path) -> None:
    """Rename within one folder, in place of a file that has the name, and put it on disk."""
    with _at(old) as place:
        os.replace(place, place_of(new))
    sync_folder(new.parent)


def rename_folder(old: Path, new: Path) -> None:
    """Rename within one folder, and put it on disk.

    Raises:
        OSError: `new` is there already and not empty, among other reasons.
    """
    with _at(old) as place:
        os.rename(place, place_of(new))
    sync_folder(new.parent)


def remove_file(path: Path) -> None:
    """Remove a file, unless somebody else did."""
    with suppress(FileNotFoundError), _at(path) as place:
        os.unlink(place)


def remove_folder(folder: Path) -> None:
    """Remove an empty folder.

    Raises:
        OSError: it is not there, or not empty, among other reasons.
    """
    with _at(folder) as place:
        os.rmdir(place)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; what somebody else removed meanwhile is no error.

    Of a link, also of one in place of the folder, nothing but the link is removed.
    """
    if os.path.islink(place := place_of(folder)):
        remove_file(folder)
        return
    for root, folders, files in os.walk(place, topdown=False):
        for name in files:
            remove_file(Path(root, name))
        for name in folders:
            _remove_folder(Path(root, name))
    _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    try:
        remove_folder(folder)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        remove_file(folder)


def _put_in_place(path: Path, data: bytes, *, mode: int, synced: bool) -> None:
    temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        _write_new(temporary, data, mode=mode, synced=synced)
        os.replace(place_of(temporary), place_of(path))
    except BaseException:
        remove_file(temporary)
        raise


def _write_new(path: Path, data: bytes, *, mode: int, synced: bool) -> None:
    descriptor = create(path, mode=mode)
    try:
        write_all(descriptor, memoryview(data))
        if synced:
            sync(descriptor)
    finally:
        close(descriptor)
