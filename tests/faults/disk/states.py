"""The states in which a power failure may leave a disk.

What was synced is there: the content of a synced file, the names in a synced folder. Of all that was done since, any
part may be there:

- *Content.* The writes up to any one of them, or any selection of them; the last one torn at any byte; or each sector
  of 512 bytes as it was at any moment since, with zeros where the file had grown and the data did not come. The
  length, too, is that of any moment since.
- *Names.* The changes of a folder up to any one of them, as a file system with a journal keeps them, or any selection
  of them: a rename may be lost while the removal after it is not. A renamed file may have both names. Folders know
  nothing of each other, but for those states in which all that was not synced is as it was at one earlier moment.
- A file whose name is there may have none of its content, and one that was synced may have lost its name.

What is left out: a disk that says that something is synced when it is not, or that damages what was (that is the
business of the checksums); garbage in place of zeros; a rename of which nothing is left, neither name; and a folder
under two names, which the check of the file system after such a failure mends.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.faults.disk.losses import FILE_LOSSES, FOLDER_LOSSES, Names, whole, whole_folder
from tests.faults.disk.model import TOP, History, Linked, Synced, Told, Tree

SHARES = (0.3, 0.7, 1.0)
ONE_MOMENT = 0.15
SINCE_A_MOMENT = "all since a moment"
LOSSES = (*FILE_LOSSES, *FOLDER_LOSSES, SINCE_A_MOMENT)


@dataclass(frozen=True, slots=True)
class State:
    """The contents of the disk, and which of `LOSSES` it has suffered."""

    tree: Tree
    losses: frozenset[str]


class Moment:
    """A run up to one of its steps: what is on disk for sure, and the changes of each file and folder that may be."""

    def __init__(self, history: History, num_steps: int) -> None:
        self._files = dict(history.files)
        self._folders = {number: dict(names) for number, names in history.folders.items()}
        self._changes: dict[int, list[Any]] = defaultdict(list)
        self._places: dict[int, list[int]] = defaultdict(list)
        for place, step in enumerate(history.steps[:num_steps]):
            if isinstance(step, Synced):
                self._settle(step.node)
            elif not isinstance(step, Told):
                self._changes[step.node].append(step)
                self._places[step.node].append(place)
                if isinstance(step, Linked):
                    self._begin(step.to, step.is_folder)

    def drawn(self, random: Random) -> State:
        """Any of the states."""
        if self._changes and random.random() < ONE_MOMENT:
            return self._as_at(random.choice(sorted({place for places in self._places.values() for place in places})))
        share = random.choice(SHARES)
        drawn: dict[int, str] = {}
        for node in sorted(self._changes):
            if random.random() < share:
                drawn[node] = random.choice(list(FOLDER_LOSSES if node in self._folders else FILE_LOSSES))
        return self._with(drawn, random)

    def whole(self) -> State:
        """Nothing is lost."""
        return self._with({}, Random(0))

    def without_content(self) -> State:
        """All names are there, and no content that was not synced."""
        return self._with({node: "all content" for node in self._changes if node in self._files}, Random(0))

    def synced(self) -> State:
        """Nothing is there that was not synced."""
        every = {node: "all names" if node in self._folders else "all content" for node in self._changes}
        return self._with(every, Random(0))

    def _begin(self, node: int, is_folder: bool) -> None:
        if is_folder:
            self._folders[node] = {}
        else:
            self._files[node] = b""

    def _settle(self, node: int) -> None:
        changes = self._changes.pop(node, [])
        self._places.pop(node, None)
        if node in self._folders:
            self._folders[node] = whole_folder(self._folders[node], changes)
        else:
            self._files[node] = whole(self._files[node], changes)

    def _as_at(self, moment: int) -> State:
        """The state at a moment; what was synced since is there all the same."""
        files, folders, lost = dict(self._files), dict(self._folders), {}
        for node, changes in self._changes.items():
            kept = [change for change, place in zip(changes, self._places[node], strict=True) if place < moment]
            if node in folders:
                folders[node] = whole_folder(folders[node], kept)
            else:
                files[node] = whole(files[node], kept)
            if len(kept) < len(changes):
                lost[node] = SINCE_A_MOMENT
        return _state(files, folders, lost)

    def _with(self, drawn: Mapping[int, str], random: Random) -> State:
        """All that was not synced is there, but for losses of some files and folders, which may turn out to be none."""
        files, folders, lost = dict(self._files), dict(self._folders), {}
        for node, changes in self._changes.items():
            loss = drawn.get(node)
            if node in folders:
                names = whole_folder(folders[node], changes)
                folders[node] = FOLDER_LOSSES[loss](folders[node], changes, random) if loss else names
                is_hurt = folders[node] != names
            else:
                content = whole(files[node], changes)
                files[node] = FILE_LOSSES[loss](files[node], changes, random) if loss else content
                is_hurt = files[node] != content
            if loss and is_hurt:
                lost[node] = loss
        return _state(files, folders, lost)


def _state(files: Mapping[int, bytes], folders: Mapping[int, Names], lost: Mapping[int, str]) -> State:
    """The state as far as it can be reached from the top; losses elsewhere are invisible."""
    losses: set[str] = set()

    def tree(folder: int) -> Tree:
        losses.update({lost[folder]} if folder in lost else ())
        built: Tree = {}
        for name, node in folders[folder].items():
            if node in folders:
                built[name] = tree(node)
            else:
                built[name] = files[node]
                losses.update({lost[node]} if node in lost else ())
        return built

    return State(tree(TOP), frozenset(losses))
