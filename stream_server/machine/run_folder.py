"""The folder of a run: whether a run may begin or go on there, and who else may read it or wrote into it."""

import errno
import grp
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_server.errors import ConfigError
from stream_server.machine.refusals import refusal
from stream_server.machine.study_lock import LOCKS
from stream_server.storage import disk
from stream_server.storage.ownership import OTHERS, first_untrusted, is_ours, name_of, others_may_rename_in

STUDY_FILE = "study.json"
JOURNAL_FILE = "journal.jsonl"
LAUNCHED_FILE = "launched.json"
SIMULATIONS = "simulations"
PRIVATE = 0o700
# Set-group-ID: new entries have its group.
SHARED = 0o2750
ACCESS_LISTS = ("system.posix_acl_access", "system.posix_acl_default")
_WITHOUT_LISTS = frozenset({errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS})
_ATTEMPT = re.compile(r"attempt-(\d+)")


def attempt_folder(folder: Path, simulation: int, attempt: int) -> Path:
    return folder / SIMULATIONS / str(simulation) / f"attempt-{attempt}"


def attempt_folders(folder: Path, simulation: int) -> dict[int, Path]:
    """The folders of the attempts of a simulation that are there, in the order of their numbers."""
    of_simulation = folder / SIMULATIONS / str(simulation)
    entries = of_simulation.iterdir() if of_simulation.is_dir() else ()
    return dict(sorted((int(match[1]), entry) for entry in entries if (match := _ATTEMPT.fullmatch(entry.name))))


def check(folder: Path, *, resume: bool) -> None:
    """Ensure that a run may begin or go on here; nothing is changed.

    Raises:
        ConfigError: what is in the folder is no run, or not our own; or `resume` insists on a run, and there is none.
    """
    require_own(folder)
    if disk.exists(folder / STUDY_FILE):
        return
    if resume:
        raise ConfigError(f"--resume was given, but there is no run in {folder}; leave it out to start one")
    if holds_anything(folder) and not _is_a_start(folder):
        raise ConfigError(
            f"{folder} is not empty, but holds no run of a study: write another study.output_dir or move it"
        )


def holds_anything(folder: Path) -> bool:
    """Whether there is more in it than locks."""
    return any(name not in LOCKS for name in disk.names_in(folder))


def set_aside(folder: Path) -> str:
    """Give a folder the name NAME.1 or the next that is free; returns a sentence that says so."""
    number = 1
    # A link that leads nowhere has a name, too.
    while os.path.lexists(free := folder.with_name(f"{folder.name}.{number}")):
        number += 1
    folder.rename(free)
    return f"the earlier run in {folder} is kept as {free.name}"


def was_set_aside(folder: Path, output_dir: Path) -> bool:
    """Whether the name of a folder is one that `set_aside` gives to `output_dir`."""
    name, _, number = folder.resolve().name.rpartition(".")
    return name == output_dir.name and number.isdecimal()


def _is_a_start(folder: Path) -> bool:
    """A launcher has been here, or there is only what precedes a run."""
    names = disk.names_in(folder)
    return JOURNAL_FILE in names or all(name in ("logs", *LOCKS) or name.startswith(STUDY_FILE) for name in names)


def claim(folder: Path, group: str | None) -> str:
    """Make the folder, or close one of ours to others; the members of `group` may read it. Returns what to tell of it.

    Raises:
        ConfigError: it cannot be made, it belongs to somebody else, others have put something into it, it cannot be
            closed, or there is no such group.
        OSError: it cannot be looked at.
    """
    number = None if group is None else number_of_group(group)
    try:
        disk.make_folder(folder)
        require_own(folder)
        # By its descriptor: in a folder that others may write, the name may lead to another one by now.
        descriptor = disk.open_folder(folder)
    except OSError as error:
        writable = "Write a study.output_dir in which you may write"
        raise ConfigError(f"the folder {folder} cannot be used: {_with_reason(error, writable)}") from error
    wanted = PRIVATE if number is None else SHARED
    try:
        before = os.fstat(descriptor)
        if number is not None and before.st_gid != number:
            os.fchown(descriptor, -1, number)
        _remove_access_lists(descriptor)
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != wanted:
            os.fchmod(descriptor, wanted)
    except OSError as error:
        modes = "A study needs a file system with owners and modes: write another study.output_dir"
        others = "others" if group is None else f"others than group {group}"
        raise ConfigError(f"{folder} cannot be closed to {others}: {_with_reason(error, modes)}") from error
    finally:
        os.close(descriptor)
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    if mode & OTHERS & ~wanted:
        raise ConfigError(
            f"{folder} stays open to others (mode {mode:04o}): its file system keeps no modes. Write another "
            "study.output_dir"
        )
    was = stat.S_IMODE(before.st_mode)
    warnings = [f"{folder} was open to others (mode {was:04o}), and is closed now"] if was & OTHERS & ~wanted else []
    if (parent := others_may_rename_in(folder.resolve().parent)) is not None:
        warnings.append(
            f"others may write into {parent}, so that they can rename {folder}, and give its name to another"
        )
    return ". ".join(warnings)


@contextmanager
def hold(folder: Path, *, resume: bool) -> Iterator[None]:
    """Within the block, all is done in the folder that has the name now, which was looked at again.

    Raises:
        ConfigError: as `check` does.
    """
    with disk.hold_folder(folder):
        check(folder, resume=resume)
        yield


def _with_reason(error: OSError, advice: str) -> str:
    """The text of an error with this advice, left out where the disk fails."""
    return refusal(error) if error.errno == errno.EIO else f"{error}. {advice}"


def _remove_access_lists(descriptor: int) -> None:
    """Remove what a folder has inherited from a default ACL above, which may name users beside its group.

    The bits of a group are those of all users that such a list names: they cannot be open to the group alone.
    """
    for name in ACCESS_LISTS:
        try:
            os.removexattr(descriptor, name)
        except OSError as error:
            if error.errno not in _WITHOUT_LISTS:
                raise


def require_own(folder: Path) -> None:
    """Ensure that a folder, if it is there, is ours, and that nobody else has put anything into it.

    Raises:
        ConfigError: it is not.
        OSError: it cannot be looked at.
    """
    try:
        link, status = os.lstat(folder), os.stat(disk.place_of(folder))
    except FileNotFoundError:
        return
    for each in (link, status):
        if not is_ours(each):
            raise ConfigError(
                f"{folder} belongs to {name_of(each.st_uid)}, and a study trusts only what is its own: write another "
                "study.output_dir"
            )
    # Others may have written into a subfolder that was open.
    mode = stat.S_IMODE(status.st_mode)
    if mode & OTHERS and mode != SHARED and (untrusted := first_untrusted(folder)) is not None:
        path, why = untrusted
        raise ConfigError(
            f"{folder} was open to others (mode {mode:04o}), and {path} {why}: a study trusts only what is its own. "
            "Write another study.output_dir"
        )


def number_of_group(group: str) -> int:
    """The number of a group of this machine.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f'study.share_with: there is no group "{group}" here; `id -Gn` lists yours') from None
