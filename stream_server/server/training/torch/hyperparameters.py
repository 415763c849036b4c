"""The hyperparameters of a TorchServer at a restart, where the user's newest word wins over what was saved.

What optimizers and schedulers are made with is kept as text in each checkpoint. What is made otherwise at a later start
is the user's newest word, and the rest goes on as it was saved.

Why: docs/decisions/0100-newest-word.md
"""

import ast
import copy
import hashlib
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from stream_server.errors import UserCodeError
from stream_server.server.progress.changes import Changes
from stream_server.server.training.torch.learning_rates import as_list
from stream_server.server.training.torch.model import kinds, load_state
from stream_server.server.user.torch_server import TorchServer
from stream_server.user_code import call_user
from stream_server.wording import listed

if TYPE_CHECKING:
    from stream_server.config import StudyConfig

# What torch counts and keeps for itself; the rates of a scheduler are those of its optimizer.
_OF_TORCH = (
    *("optimizer", "base_lrs", "last_epoch", "_last_lr", "_step_count", "_is_initial", "_get_lr_called_within_step"),
    "_scale_fn_ref",
)
# Functions of the step, as of LambdaLR, are compared by their values at these steps.
_PROBED = [*range(2000), *(int(2000 * 1.01**num) for num in range(1, 626))]
# The text of what cannot be compared.
_UNSEEN = "unseen"
# With one of these an optimizer has a further state, which was not saved.
_NEEDING_STATE = (".amsgrad", ".centered", ".momentum")

_log = logging.getLogger(__name__)


def settings_of(server: TorchServer) -> dict[str, str]:
    """The settings of optimizers and schedulers by place, as text; called before either has taken a step."""
    every: dict[str, str] = {}
    for place, optimizer in enumerate(as_list(server.optimizer)):
        for number, group in enumerate(optimizer.param_groups):
            # A scheduler may begin with another rate than the optimizer was made with.
            settings = {**group, "lr": group.get("initial_lr", group["lr"])}
            for key in settings.keys() & {"params", "initial_lr"}:
                del settings[key]
            every |= _settings(_group_name(place, number), settings)
    for place, scheduler in enumerate(as_list(server.lr_scheduler)):
        every |= _settings(f"lr_scheduler[{place}]", vars(scheduler))
    return every


class Hyperparameters:
    """The settings with which a server makes its optimizers and schedulers, and which hold when a state is restored.

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
        before = _by_place(state.get("made", {}), state["kinds"]["schedulers"])
        pairs = {name: (_value(before[name]), _value(now[name])) for name in now.keys() & before.keys()}
        self._changed = {name: pairs[name] for name in now if name in pairs and pairs[name][0] != pairs[name][1]}
        self.changes = Changes(server.progress.batches)
        if self._keeps_saved:
            self._refuse_functions()
        for unseen in (self._shown(name) for name, text in now.items() if text == _UNSEEN):
            _log.info("%s is neither numbers, text nor a function of the step: a change of it is not seen", unseen)
        takes_newest, made_rates = before and not self._keeps_saved, _rates(server)
        load_state(server, state, self._renew if takes_newest else None)
        self.made = now if takes_newest else before or now
        name = f"{type(server).__name__}.prepare_training_attributes"
        if self._keeps_saved and self._changed:
            shown = listed(list(map(self._shown, self._changed)))
            _log.info("load.hyperparameters is saved: %s of %s are not taken", shown, name)
        if not before and not as_list(server.lr_scheduler) and made_rates != _rates(server):
            return (
                f"{name} makes the learning rates {made_rates}, and {_rates(server)} go on, which were saved by a "
                "version that did not note what was made: change them once more after the next checkpoint"
            )
        return ""

    def _refuse_functions(self) -> None:
        if functions := [self._shown(name) for name, pair in self._changed.items() if "'function " in repr(pair)]:
            raise UserCodeError(
                f"{type(self._server).__name__}.prepare_training_attributes makes {listed(functions)} otherwise than "
                "before, and functions are not saved, so that what was saved cannot go on: make the same as before, or "
                "start without --keep-saved (load.hyperparameters)"
            )

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
        name, saved = f"optimizer[{place}]", state["optimizers"][place]
        schedules = {n: f"lr_scheduler[{n}]" for n in own}
        mine = {key: pair for key, pair in self._changed.items() if key.startswith((f"{name}.", *schedules.values()))}
        was, now = state["kinds"]["optimizers"][place], kinds(optimizer)[0]
        if not (mine or was != now or is_scheduled_anew):
            return
        made, note = [_texts(group) for group in optimizer.param_groups], ""
        plateaus = tuple(schedules[n] for n, each in own.items() if isinstance(each, ReduceLROnPlateau))
        follows_losses, moving = bool(plateaus), _moving(place, optimizer, saved, mine, plateaus)
        if len(own) > len(plateaus) > 0 and moving:
            self._refuse_beside_plateau(moving[0])
        for n in own if follows_losses else ():
            _set_changed(own[n], state["schedulers"][n], schedules[n], mine)
        has_other_rate = any(f"{_group_name(place, number)}.lr" in mine for number in range(len(made)))
        if own and not follows_losses and (was != now or moving or has_other_rate):
            note = f"; the schedule goes on at its step {self._step_again(own, state['schedulers']):,}"
        begins_anew = was != now or any(key.endswith(_NEEDING_STATE) and not pair[0] for key, pair in mine.items())
        for number, (group, its_saved) in enumerate(zip(optimizer.param_groups, saved["param_groups"], strict=True)):
            prefix, texts = f"{_group_name(place, number)}.", _texts(group)
            taken = {key for key in texts if was != now or prefix + key in mine or texts[key] != made[number][key]}
            if is_scheduled_anew or note or f"{prefix}lr" in mine:
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

    def _refuse_beside_plateau(self, name: str) -> None:
        before, now = self._changed[name]
        raise UserCodeError(
            f"{type(self._server).__name__}.prepare_training_attributes makes another {self._shown(name)}, {before} "
            f"before and {now} now. Beside a ReduceLROnPlateau a changed schedule cannot go on at its place, since the "
            "losses that the rate has followed are gone: make the same as before, or leave the ReduceLROnPlateau out, "
            "by which all schedulers begin anew. --keep-saved goes on with numbers as they were saved"
        )

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
        self.changes.note(self._shown(name), before=before, now=now, source=source, note=note)

    def _shown(self, name: str) -> str:
        parts = self._server.optimizer if name.startswith("optimizer") else self._server.lr_scheduler
        short = name if isinstance(parts, tuple | list) else name.replace("[0]", "", 1)
        return "learning rate" if short == "optimizer.lr" else short


def _rates(server: TorchServer) -> list[float]:
    return [float(group["lr"]) for optimizer in as_list(server.optimizer) for group in optimizer.param_groups]


def _moving(
    place: int, optimizer: Any, saved: Mapping[str, Any], changed: Mapping[str, Any], plateaus: tuple[str, ...]
) -> list[str]:
    """The changed settings of schedules that follow no losses, and those of the optimizer that something has moved.

    A schedule may keep its own settings in the groups of the optimizer, where they are no defaults of it.
    """
    moving = [key for key in changed if key.startswith("lr_scheduler") and not (plateaus and key.startswith(plateaus))]
    defaults = getattr(optimizer, "defaults", {})
    for number, group in enumerate(saved["param_groups"]):
        for key in group.keys() - {"lr"}:
            pair = changed.get(name := f"{_group_name(place, number)}.{key}")
            if pair is not None and (key not in defaults or _value(_text(group[key])) != pair[0]):
                moving.append(name)
    return moving


def _set_changed(scheduler: Any, state: dict[str, Any], name: str, changed: Mapping[str, Any]) -> None:
    for key in vars(scheduler).keys() & state.keys():
        if f"{name}.{key}" in changed or key == "base_lrs":
            state[key] = getattr(scheduler, key)
    if f"{name}.mode" in changed:
        state |= {"best": scheduler.best, "num_bad_epochs": 0}
    parts = zip(getattr(scheduler, "_schedulers", ()), state.get("_schedulers", ()), strict=False)
    for place, (part, its_state) in enumerate(parts):
        _set_changed(part, its_state, f"{name}[{place}]", changed)


def _schedules(scheduler: Any, optimizer: Any, *, is_first: bool) -> bool:
    own = getattr(scheduler, "optimizer", None)
    return own is optimizer or (own is None and is_first)


def _position(state: Mapping[str, Any], otherwise: int) -> int:
    """The steps that a saved scheduler, or else one of its parts, has taken; `otherwise` if none counts them."""
    if "last_epoch" in state:
        return int(state["last_epoch"])
    return max((_position(part, otherwise) for part in state.get("_schedulers", ())), default=otherwise)


def _group_name(place: int, number: int) -> str:
    return f"optimizer[{place}]" + (f".param_groups[{number}]" if number else "")


def _by_place(made: Mapping[str, str], kinds_of_schedulers: Sequence[str]) -> dict[str, str]:
    """The settings as made, which early versions named without a place where there was no list."""
    has_parts = len(kinds_of_schedulers) == 1 and "(" in kinds_of_schedulers[0]
    for part in ("optimizer", "lr_scheduler"):
        is_without = any(name.startswith(f"{part}.") for name in made)
        if part == "lr_scheduler" and has_parts:
            is_without |= not any(name.startswith("lr_scheduler[0][") for name in made)
        if is_without:
            made = {re.sub(rf"^{part}", f"{part}[0]", name): text for name, text in made.items()}
    return dict(made)


def _settings(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for key, value in values.items():
        if key == "_schedulers":
            for place, part in enumerate(value):
                settings |= _settings(f"{name}[{place}]", vars(part))
        elif key not in _OF_TORCH:
            settings[f"{name}.{key}"] = _text(value, is_function=key in ("lr_lambdas", "_scale_fn_custom"))
    return settings


def _texts(group: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in group.items() if key != "params"}


def _text(value: Any, *, is_function: bool = False) -> str:
    try:
        return repr(_plain(value, is_function=is_function))
    except (TypeError, ValueError, RuntimeError):
        return _UNSEEN


def _plain(value: Any, *, is_function: bool) -> Any:
    """A value of Python's numbers, texts and containers, with digests of arrays and functions.

    Raises:
        TypeError: it has something else in it.
    """
    plain = partial(_plain, is_function=is_function)
    if isinstance(value, torch.Tensor):
        value = (value.detach().float() if value.dtype == torch.bfloat16 else value.detach()).cpu().numpy()
    if isinstance(value, np.ndarray) and value.size != 1:
        if value.dtype.hasobject:
            raise TypeError("an array of objects")
        return f"array of shape {value.shape}, {_digest(np.ascontiguousarray(value).tobytes())}"
    if isinstance(value, np.ndarray | np.generic):
        # A number in 32 bits means the decimal one that it is written as.
        return float(str(np.float32(value.item()))) if value.dtype == np.float32 else plain(value.item())
    if isinstance(value, tuple | list):
        return [*map(plain, value)] if isinstance(value, list) else (*map(plain, value),)
    if isinstance(value, Mapping):
        return type(value)({plain(key): plain(item) for key, item in value.items()})  # type: ignore[call-arg]
    if callable(value) and (is_function or inspect.isfunction(value) or isinstance(value, partial)):
        # torch saves what an object holds.
        is_saved = not (inspect.isroutine(value) or isinstance(value, partial))
        return f"{'object' if is_saved else 'function'} {_probe(value)}"
    if value is None or isinstance(value, int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__}")


def _probe(function: Callable[[int], float]) -> str:
    # One that is an object may count its calls; one that looks into a table may not know all steps.
    function = copy.copy(function)
    values = [""] * len(_PROBED)
    for place, step in enumerate(_PROBED):
        with suppress(Exception):
            values[place] = f"{float(function(step)):.9g}"
        if step == 2 and not any(values):
            raise TypeError("no function of the step")
    return _digest(",".join(values).encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def _value(text: str) -> Any:
    # Early versions wrote numbers of NumPy as they are.
    text = re.sub(r"np\.\w+\(([^()]*)\)", r"\1", text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
