"""The hyperparameters of a TorchServer at a restart, where the user's newest word wins over what was saved.

What optimizers and schedulers are made with is kept as text in each checkpoint. What is made otherwise at a later start
is the user's newest word, and the rest goes on as it was saved.

Why: docs/decisions/0100-newest-word.md
"""

import ast
import copy
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from stream_server.server.progress.changes import Changes
from stream_server.server.training.torch.learning_rates import as_list
from stream_server.server.training.torch.model import kinds, load_state
from stream_server.server.user.torch_server import TorchServer
from stream_server.user_code import call_user
from stream_server.wording import listed

if TYPE_CHECKING:
    from stream_server.config import StudyConfig

# Private attributes by which the schedules of torch differ.
_PRIVATE = ("_milestones", "_schedule_phases", "_anneal_func_type")
# Functions of the step, as of LambdaLR, are compared by their values at these steps.
_PROBED = (0, 1, 10, 100, 1000, 10_000, 100_000)
# With one of these an optimizer has a further state, which was not saved.
_NEEDING_STATE = (".amsgrad", ".centered", ".momentum")

_log = logging.getLogger(__name__)


def settings_of(server: TorchServer) -> dict[str, str]:
    """The settings of optimizers and schedulers by name, as text; called before either has taken a step."""
    every: dict[str, str] = {}
    for place, optimizer in enumerate(as_list(server.optimizer)):
        for number, group in enumerate(optimizer.param_groups):
            # A scheduler may begin with another rate than the optimizer was made with.
            settings = {**group, "lr": group.get("initial_lr", group["lr"])}
            for key in settings.keys() & {"params", "initial_lr"}:
                del settings[key]
            every |= _settings(_group_name(server, place, number), settings)
    for place, scheduler in enumerate(as_list(server.lr_scheduler)):
        every |= _settings(_name_of("lr_scheduler", place, server.lr_scheduler), vars(scheduler))
    return every


class Hyperparameters:
    """What a server makes its optimizers and schedulers with, and which of it holds when a state is restored.

    A changed schedule, or that of a changed optimizer, takes all its steps until now again (5 s for a million), so that
    it is what it would be had it been so from the beginning, whatever its class. A ReduceLROnPlateau follows losses,
    which are gone: where it has a part in a rate, this is multiplied by new base / old base.

    Attributes:
        made: the settings that are the user's word so far, for the checkpoint.
        changes: those that the last `load` has found changed, and taken.
    """

    def __init__(self, server: TorchServer, config: "StudyConfig") -> None:
        self._server = server
        self._training = config.training
        self._keeps_saved = config.load.hyperparameters == "saved"
        self._class_file = Path(config.server.class_.rpartition(":")[0]).name
        self._changed: dict[str, tuple[Any, Any]] = {}
        self.made: dict[str, str] = {}
        self.changes = Changes()

    def note_made(self) -> None:
        self.made = settings_of(self._server)

    def load(self, state: Mapping[str, Any]) -> str:
        """Restore optimizers and schedulers from what a step has saved; returns what is to be warned of, or "".

        Raises:
            UserCodeError: the user's code makes something else than what was saved.
        """
        server, now = self._server, self.made
        before: dict[str, str] = state.get("made", {})
        changed = [name for name, text in now.items() if before.get(name, text) != text]
        self._changed = {name: (_value(before[name]), _value(now[name])) for name in changed}
        self.changes = Changes(server.progress.batches)
        takes_newest, made_rates = before and not self._keeps_saved, _rates(server)
        load_state(server, state, self._renew if takes_newest else None)
        self.made = now if takes_newest else before or now
        name = f"{type(server).__name__}.prepare_training_attributes"
        if self._keeps_saved and changed:
            _log.info("load.hyperparameters is saved: %s of %s are not taken", listed(changed), name)
        if not before and not as_list(server.lr_scheduler) and made_rates != _rates(server):
            return (
                f"{name} makes the learning rates {made_rates}, and {_rates(server)} go on, which were saved by a "
                "version that did not note what was made: change them once more after the next checkpoint"
            )
        return ""

    def _renew(self, state: dict[str, Any]) -> None:
        """Put the newest word into a state before it is loaded; what is to stay as it is made now becomes None."""
        schedulers = as_list(self._server.lr_scheduler)
        was, now = state["kinds"]["schedulers"], kinds(schedulers)
        if was != now:
            state["schedulers"] = [None] * len(now)
            note = "it begins anew, at the rate of the optimizer" if now else "the rate is that of the optimizer"
            self._note("lr_scheduler", " and ".join(was) or None, " and ".join(now) or None, note)
        for place, optimizer in enumerate(as_list(self._server.optimizer)):
            own = {n: it for n, it in enumerate(schedulers) if _schedules(it, optimizer, is_first=place == 0)}
            self._renew_optimizer(place, optimizer, state, {} if was != now else own, is_scheduled_anew=was != now)

    def _renew_optimizer(
        self, place: int, optimizer: Any, state: dict[str, Any], own: Mapping[int, Any], *, is_scheduled_anew: bool
    ) -> None:
        name, saved = _name_of("optimizer", place, self._server.optimizer), state["optimizers"][place]
        schedules = {n: _name_of("lr_scheduler", n, self._server.lr_scheduler) for n in own}
        mine = {key: pair for key, pair in self._changed.items() if key.startswith((f"{name}.", *schedules.values()))}
        was, now = state["kinds"]["optimizers"][place], kinds(optimizer)[0]
        if not (mine or was != now or is_scheduled_anew):
            return
        made, note = [_texts(group) for group in optimizer.param_groups], ""
        follows_losses = any(isinstance(each, ReduceLROnPlateau) for each in own.values())
        for n in own if follows_losses else ():
            _set_changed(own[n], state["schedulers"][n], schedules[n], mine)
        if own and not follows_losses:
            note = f"; the schedule goes on at its step {self._step_again(own, state['schedulers']):,}"
        begins_anew = was != now or any(key.endswith(_NEEDING_STATE) and not pair[0] for key, pair in mine.items())
        for number, (group, its_saved) in enumerate(zip(optimizer.param_groups, saved["param_groups"], strict=True)):
            prefix, texts = f"{_group_name(self._server, place, number)}.", _texts(group)
            taken = {key for key in texts if was != now or prefix + key in mine or texts[key] != made[number][key]}
            if is_scheduled_anew or note:
                taken |= {"lr", "initial_lr"} & group.keys()
            rate = its_saved["lr"]
            its_saved |= {key: group[key] for key in taken}
            if is_scheduled_anew and "initial_lr" not in group:
                its_saved.pop("initial_lr", None)
            if follows_losses:
                base_was, base_now = mine.get(f"{prefix}lr", (1.0, 1.0))
                its_saved["lr"] = rate * (base_now / base_was) if base_was else base_now
            if begins_anew:
                group.update({key: its_saved[key] for key in texts.keys() & its_saved.keys()})
        state["optimizers"][place] = None if begins_anew else saved
        note = f"optimizer state {'begins anew' if begins_anew else 'kept'}{note}"
        if was != now:
            self._note(name, was, now, note)
        for key, pair in mine.items():
            self._note(key, *pair, note)

    def _step_again(self, own: Mapping[int, Any], states: list[Any]) -> int:
        """Let new schedulers of one optimizer take the steps that were saved; returns their number."""
        positions = {n: _position(states[n], self._server.progress.lr_steps) for n in own}
        with warnings.catch_warnings():
            # That the optimizer has taken no step yet, and others about old ways of stepping.
            warnings.simplefilter("ignore")
            for step in range(max(positions.values())):
                for n, scheduler in own.items():
                    if step < positions[n]:
                        call_user(f"the lr_scheduler of {type(self._server).__name__}", scheduler.step)
        for n in own:
            states[n] = None
        return max(positions.values())

    def _note(self, name: str, before: Any, now: Any, note: str) -> None:
        component = self._training.optimizer if name.startswith("optimizer") else self._training.lr_scheduler
        source = self._class_file if component is None else "study.json"
        shown = "learning rate" if name == "optimizer.lr" else name
        self.changes.note(shown, before=before, now=now, source=source, note=note)


def _rates(server: TorchServer) -> list[float]:
    return [float(group["lr"]) for optimizer in as_list(server.optimizer) for group in optimizer.param_groups]


def _set_changed(scheduler: Any, state: dict[str, Any], name: str, changed: Mapping[str, Any]) -> None:
    for key in vars(scheduler).keys() & state.keys():
        if f"{name}.{key}" in changed or key == "base_lrs":
            state[key] = getattr(scheduler, key)
    if f"{name}.mode" in changed:
        state |= {"best": scheduler.best, "num_bad_epochs": 0}


def _schedules(scheduler: Any, optimizer: Any, *, is_first: bool) -> bool:
    own = getattr(scheduler, "optimizer", None)
    return own is optimizer or (own is None and is_first)


def _position(state: Mapping[str, Any], otherwise: int) -> int:
    """The steps that a saved scheduler, or else one of its parts, has taken; `otherwise` if none counts them."""
    if "last_epoch" in state:
        return int(state["last_epoch"])
    return max((_position(part, otherwise) for part in state.get("_schedulers", ())), default=otherwise)


def _name_of(name: str, place: int, parts: Any) -> str:
    return f"{name}[{place}]" if isinstance(parts, tuple | list) else name


def _group_name(server: TorchServer, place: int, number: int) -> str:
    return _name_of("optimizer", place, server.optimizer) + (f".param_groups[{number}]" if number else "")


def _settings(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for key, value in values.items():
        if key == "_schedulers":
            for place, part in enumerate(value):
                settings |= _settings(f"{name}[{place}]", vars(part))
        elif key == "lr_lambdas":
            settings[f"{name}.{key}"] = repr([_probe(function) for function in value])
        # The rates of a scheduler are those of its optimizer.
        elif (
            (not key.startswith("_") or key in _PRIVATE)
            and key not in ("base_lrs", "last_epoch")
            and _is_setting(value)
        ):
            settings[f"{name}.{key}"] = _text(value)
    return settings


def _probe(function: Callable[[int], float]) -> list[float | None]:
    values: list[float | None] = [None] * len(_PROBED)
    # One that is an object may count its calls; one that looks into a table may not know all steps.
    with suppress(Exception):
        function = copy.copy(function)
        for place, step in enumerate(_PROBED):
            values[place] = float(function(step))
    return values


def _texts(group: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in group.items() if key != "params"}


def _text(value: Any) -> str:
    return repr(value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple | list | Mapping):
        return all(map(_is_setting, value))
    return isinstance(value, int | float | str | None) or (isinstance(value, torch.Tensor) and value.numel() == 1)
