"""The parts of a training that study.json names: server class, model, optimizer, scheduler, criterion, callbacks, …

Why: docs/decisions/0097-parts.md
"""

import ast
import inspect
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from stream_server.config.placeholders import EXPECTED_LR_STEPS
from stream_server.config.problems import nearest, one_of
from stream_server.config.study import value_of
from stream_server.errors import ConfigError, UserCodeError
from stream_server.live_parts import LiveObject
from stream_server.server.metrics.monitor import VALIDATED
from stream_server.server.user.callbacks import EVENTS, Callback
from stream_server.server.user.global_generators import seeded_generators
from stream_server.server.user.stream_server import StreamServer
from stream_server.user_code import call_user, load_class

if TYPE_CHECKING:
    from stream_server.config import StudyConfig
    from stream_server.config.training_sections import Component

# A name that is less like that of a method than this is one of the user's own.
MISSPELT = 0.85
# What looks like an event. Lightning has many more of them; its other methods are known by their names.
_EVENT = re.compile(r"on_\w+|configure_\w+|\w+_epoch_(start|end)")
_OWN_STEP = "training_step, which steps its optimizer itself where automatic_optimization is False"
_AT_VALIDATIONS = "on_validation_end: a stream has no epochs"
INSTEAD: Mapping[str, str] = {
    "configure_optimizers": "prepare_training_attributes",
    "configure_gradient_clipping": "training.clip_norm in study.json, or on_gradients",
    "lr_scheduler_step": "a subclass of the scheduler, which the study steps",
    "on_after_backward": "on_gradients",
    "on_before_backward": _OWN_STEP,
    "on_before_optimizer_step": "on_gradients",
    "on_before_zero_grad": _OWN_STEP,
    "on_epoch_end": _AT_VALIDATIONS,
    "on_load_checkpoint": "load_state_dict",
    "on_save_checkpoint": "state_dict",
    "on_test_epoch_end": "on_validation_end",
    "on_train_batch_end": "on_batch_end",
    "on_train_batch_start": "on_batch_start",
    "on_train_epoch_end": _AT_VALIDATIONS,
    "on_validation_epoch_end": "on_validation_end",
    "optimizer_step": _OWN_STEP,
    "predict_step": "predict",
    "setup": "on_train_start",
    "teardown": "on_train_end",
    "training_epoch_end": _AT_VALIDATIONS,
    "training_step_end": "on_batch_end",
    "validation_epoch_end": "on_validation_end",
}
_THIRD = (
    "; a third argument may be set_name, the name of the set, or as in Melissa batch_idx after valid_batch_idx, the "
    "number of batches that are trained"
)
# What each part of a training must be, and the methods by which it is known: a user's own may be of any class.
PARTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "model": ("a torch.nn.Module", ("named_parameters",)),
    "optimizer": ("a torch.optim.Optimizer", ("step", "zero_grad", "state_dict")),
    "lr_scheduler": ("a learning-rate scheduler with step and state_dict", ("step", "state_dict")),
    "criterion": ("a loss that can be called", ("__call__",)),
}
# The attribute of the server class that stands for a key, and how many arguments come before those of study.json.
NAMED: Mapping[str, tuple[str, int]] = {
    "training.model": ("prepare_training_attributes", 0),
    "training.optimizer": ("prepare_training_attributes", 1),
    "training.lr_scheduler": ("prepare_training_attributes", 1),
    "training.criterion": ("criterion", 0),
    "training.train_dataloader": ("train_dataloader", 1),
    "validation.val_dataloader": ("val_dataloader", 0),
}

log = logging.getLogger(__name__)


def load_server_class(config: "StudyConfig") -> type[StreamServer]:
    """Import the class named by `server.class`.

    Raises:
        UserCodeError: the user's file raised while it was imported; that exception is the cause.
        ConfigError: what it names is no subclass of StreamServer, lacks a method that the study needs, has one that
            cannot be called as it will be, or does not go with the classes that `training` names, see
            `check_components`.
    """
    # What the file draws while it is imported is the same on all ranks, and at each start.
    with seeded_generators(config.study.seed):
        server_class = load_class(config.server.class_, config.study_dir, kind="server.class")
    if not (isinstance(server_class, type) and issubclass(server_class, StreamServer)):
        raise ConfigError(
            "server.class must name a subclass of StreamServer or TorchServer, "
            f"but {config.server.class_} is {server_class!r}"
        )
    missing = [method for method in _required_methods(config, server_class) if not _defines(server_class, method)]
    misspelt = dict(_uncalled_methods(server_class, StreamServer))
    if missing:
        hints = [f"; did you mean {meant} by {name}?" for name, meant in misspelt.items() if meant in missing]
        names = " and ".join(missing)
        raise ConfigError(f"{server_class.__name__} must define {names}, which this study needs{''.join(hints)}")
    if not _validates(config, server_class):
        _require_nothing_of_validations(config, server_class)
    asked = [key for key in ("at_start", "sets") if getattr(config.validation, key)]
    if asked and not _has_loader(config, server_class):
        raise ConfigError(
            f"validation.{asked[0]} needs {server_class.__name__}.val_dataloader or validation.val_dataloader: "
            "held-out simulations are one set, of which nothing is there before the training. Write one of them, or "
            "leave the key out"
        )
    holds_back = _defines(server_class, "make_loader") and not _is_ours(_first_owner(server_class, "train_dataloader"))
    if config.study.rounds is not None and holds_back:
        raise ConfigError(
            f"study.rounds: the loader of {server_class.__name__}.train_dataloader may hold samples back, so that no "
            "round would end. Leave the method out, or study.rounds"
        )
    _warn_of(server_class, misspelt)
    _require_signatures(server_class)
    check_components(config, server_class)
    return server_class


def _required_methods(config: "StudyConfig", server_class: type[StreamServer]) -> list[str]:
    """The methods without which a study would fail at its first batch, or, worse, at its first validation."""
    formed = [] if _defines(server_class, "process_batch") else ["process_simulation_data"]
    by_criterion = config.training.criterion is not None and server_class.automatic_optimization
    forecasts = config.validation.rollout is None or _defines(server_class, "predict")
    return [
        *formed,
        *([] if by_criterion else ["training_step"]),
        *(["validation_step"] if _validates(config, server_class) and not by_criterion else []),
        *([] if forecasts or _defines(server_class, "rollout_step") else ["rollout_step"]),
    ]


def _validates(config: "StudyConfig", server_class: type[StreamServer]) -> bool:
    return config.validation.simulations > 0 or _has_loader(config, server_class)


def _has_loader(config: "StudyConfig", server_class: type[StreamServer]) -> bool:
    return config.validation.val_dataloader is not None or _defines(server_class, "val_dataloader")


def _require_nothing_of_validations(config: "StudyConfig", server_class: type[StreamServer]) -> None:
    """Refuse what would wait for validations for ever."""
    stop, scheduler = config.training.early_stop, config.training.lr_scheduler
    asked = {
        "validation.every_batches": config.validation.every_batches is not None,
        "validation.every_s": config.validation.every_s is not None,
        "validation.at": bool(config.validation.at),
        "validation.max_batches": config.validation.max_batches is not None,
        "validation.save_before": config.validation.save_before,
        "checkpoint.monitor": config.checkpoint.monitor != "val/loss",
        "training.early_stop": stop is not None and stop.monitor.startswith(VALIDATED),
        "training.lr_scheduler": scheduler is not None and scheduler.class_.endswith(":ReduceLROnPlateau"),
    }
    if keys := [key for key, is_asked in asked.items() if is_asked]:
        them = " and ".join(keys)
        raise ConfigError(
            f"{them} must be left out where nothing is validated: no simulation is held out, and "
            f"{server_class.__name__} has no val_dataloader. Write validation.simulations or "
            f"validation.val_dataloader, define val_dataloader, or leave {them} out"
        )


def _defines(server_class: type[StreamServer], method: str) -> bool:
    return getattr(server_class, method) is not getattr(StreamServer, method)


def _uncalled_methods(cls: type, base: type) -> Iterator[tuple[str, str]]:
    """The methods that nobody calls, each with what was probably meant, "" if that is not known.

    They are spelt almost like one of `base` that is not overridden, or look like events that other trainers have, and
    are named nowhere else in the file of their class.
    """
    ours = [owner for owner in cls.__mro__ if _is_ours(owner)]
    known = {name for owner in ours for name in vars(owner)}
    methods = [name for name in vars(base) if not name.startswith("_") and callable(getattr(base, name))]
    for user in cls.__mro__:
        if user in ours or not issubclass(user, base):
            continue
        for name, value in vars(user).items():
            if name.startswith("_") or name in known or not callable(value):
                continue
            meant = nearest(name, methods, likeness=MISSPELT)
            if meant is not None and _first_owner(cls, meant) in ours:
                yield name, meant
            elif (name in INSTEAD or _EVENT.fullmatch(name)) and not _is_named_again(name, user):
                yield name, INSTEAD.get(name, nearest(name, methods) or "")


def _is_named_again(name: str, owner: type) -> bool:
    """Whether the code of the file of a class names a method elsewhere than in its definitions and in comments."""
    try:
        module = sys.modules[owner.__module__]
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, KeyError):
        return True
    if not hasattr(module, owner.__name__):
        # It was in the file of another process.
        return True
    # As in `self.NAME`, NAME and getattr(self, "NAME").
    return any(getattr(node, kind, None) == name for node in ast.walk(tree) for kind in ("attr", "id", "value"))


def _require_signatures(cls: type) -> None:
    """Check that the methods that a user's class has in place of ours can be called as ours are.

    Raises:
        ConfigError: one cannot.
    """
    for name in dict.fromkeys(name for each in cls.__mro__ if _is_ours(each) for name in vars(each)):
        ours, own = next(each for each in cls.__mro__ if _is_ours(each) and name in vars(each)), getattr(cls, name)
        if name.startswith("_") or _is_ours(_first_owner(cls, name)) or not inspect.isfunction(getattr(ours, name)):
            continue
        first = [] if isinstance(vars(ours)[name], staticmethod) else ["self"]
        parameters = list(inspect.signature(getattr(ours, name)).parameters.values())[len(first) :]
        needed = [each for each in parameters if _is_needed(each)]
        positional = [each.name for each in needed if each.kind is not each.KEYWORD_ONLY]
        named = {each.name: None for each in needed if each.kind is each.KEYWORD_ONLY}
        # Within a class the signature of a method has `self`.
        is_static = not first or isinstance(inspect.getattr_static(cls, name), staticmethod)
        itself = [None] * (inspect.isfunction(own) and not is_static)
        try:
            signature = inspect.signature(own)
            if name == "validation_step":
                positional += third_argument(own, len(itself))
            signature.bind(*itself, *positional, **named)
        except ValueError:
            # Some functions in C have none.
            continue
        except TypeError:
            hint = _THIRD if name == "validation_step" else ""
            given, taken = ", ".join([*positional, *named]), ", ".join([*signature.parameters][len(itself) :])
            raise ConfigError(
                f"{cls.__name__}.{name} is called with ({given}), but takes ({taken}): write "
                f"`def {name}({', '.join([*first, *positional, *named])})`{hint}"
            ) from None


def third_argument(validation_step: Any, num_before: int = 0) -> list[str]:
    """The name of the third argument that a `validation_step` is given: `set_name`, or `batch_idx` as in Melissa."""
    try:
        parameters = [*inspect.signature(validation_step).parameters.values()]
    except ValueError:
        return []
    third = parameters[num_before + 2 : num_before + 3]
    return [it.name for it in third if it.name == "set_name" or (it.name == "batch_idx" and _is_needed(it))]


def _is_ours(owner: type) -> bool:
    return owner.__module__.startswith("stream_server.")


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _first_owner(cls: type, name: str) -> type:
    return next(each for each in cls.__mro__ if name in vars(each))


def _warn_of(cls: type, misspelt: Mapping[str, str]) -> None:
    for name, meant in misspelt.items():
        if meant:
            log.warning("%s.%s is never called by the study: did you mean %s?", cls.__name__, name, meant)
        else:
            log.warning(
                "%s.%s is never called by the study, whose events are %s", cls.__name__, name, ", ".join(EVENTS)
            )


def check_components(config: "StudyConfig", server_class: type[StreamServer]) -> None:
    """Import every class that `training` and `validation` name, and check it and its arguments; nothing is made.

    Raises:
        ConfigError: a class is not there or does not take its arguments, the server class has such a part itself, or
            nobody makes a model.
        UserCodeError: a file raised while it was imported.
    """
    training, name = config.training, server_class.__name__
    owner = _first_owner(server_class, "prepare_training_attributes")
    if training.model is None and owner is not StreamServer and _is_ours(owner):
        raise ConfigError(
            f"{name} must define prepare_training_attributes, or study.json must have training.model and "
            "training.optimizer"
        )
    for key, (attribute, num_given) in NAMED.items():
        component, part = value_of(config, key), key.rpartition(".")[2]
        if component is None:
            continue
        owner = next((each for each in server_class.__mro__ if attribute in vars(each)), StreamServer)
        if owner is StreamServer and attribute != "val_dataloader":
            raise ConfigError(f"{key} would be ignored by {name}: make it a subclass of TorchServer")
        if not _is_ours(owner):
            raise ConfigError(
                f"the {part} is made twice, by {key} and by {owner.__name__}.{attribute}: remove one of the two"
            )
        made = _class_of(_load(config, component, key, num_given))
        if made is not None and part in PARTS and not _is_part(part, made):
            raise ConfigError(f"{key}.class must make {PARTS[part][0]}, but {component.class_} is {made!r}")
    for position, component in enumerate(training.callbacks):
        key = f"training.callbacks[{position}]"
        made = _class_of(_load(config, component, key, 0))
        if made is not None and not issubclass(made, Callback):
            raise ConfigError(f"{key}.class must name a subclass of Callback, but {component.class_} is {made!r}")
        if made is not None:
            _require_signatures(made)


def _class_of(loaded: Any) -> type | None:
    """The class of what will be made, None where a function makes it."""
    if isinstance(loaded, LiveObject):
        return type(loaded.original)
    return loaded if isinstance(loaded, type) else None


def make_training_attributes(server: Any) -> tuple[Any, ...]:
    """The model, the optimizer of its parameters, and the scheduler, if there is one, as `training` describes them.

    Raises:
        ConfigError: see `check_components`.
        UserCodeError: a class raised, or makes something else.
    """
    training = server.config.training
    model = _make_part(server, training.model, "model")
    optimizer = _make_part(server, training.optimizer, "optimizer", model.parameters())
    if training.lr_scheduler is None:
        return model, optimizer
    settings = training.lr_scheduler
    args = {
        name: server.expected_lr_steps if value == EXPECTED_LR_STEPS else value for name, value in settings.args.items()
    }
    settings = settings.model_copy(update={"args": args})
    return model, optimizer, _make_part(server, settings, "lr_scheduler", optimizer)


def require_part(key: str, part: Any, *, must: str, but: str) -> None:
    """Check that what was made for a training, or each of several optimizers or schedulers, is what `PARTS` says.

    The error says that somebody `must` make it, `but` did something else.

    Raises:
        UserCodeError: it is not.
    """
    for item in part if key != "model" and isinstance(part, tuple | list) and part else [part]:
        if isinstance(item, type) or not _is_part(key, item):
            raise UserCodeError(f"{must} {PARTS[key][0]}, but {but} {item!r}")


def _is_part(key: str, part: Any) -> bool:
    """Whether it has the methods of such a part; an optimizer, which has those of a scheduler too, is none."""
    is_optimizer = key == "lr_scheduler" and hasattr(part, "zero_grad")
    # The class of a class has `__call__`, too.
    has = dir(part).__contains__ if isinstance(part, type) else partial(hasattr, part)
    return not is_optimizer and all(map(has, PARTS[key][1]))


def make_criterion(server: Any) -> Any:
    """The loss that `training.criterion` names, a function or what a class makes; None if it names none.

    Raises:
        ConfigError, UserCodeError: see `make_training_attributes`.
    """
    component, key = server.config.training.criterion, "training.criterion"
    if component is None:
        return None
    loaded = _load(server.config, component, key, NAMED[key][1])
    if _class_of(loaded) is not None:
        return _make_part(server, component, "criterion")
    return partial(loaded, **component.args) if component.args else loaded


def make_loader(server: Any, key: str, *given: Any) -> Any:
    """The loader that `training.train_dataloader` or `validation.val_dataloader` names, None if it names none."""
    component = None if server.config is None else value_of(server.config, key)
    return None if component is None else _make(server, component, key, *given)


def loader_name(server: Any) -> str:
    """The name of what gives the validation sets: the key of study.json, or the method of the server class."""
    named = server.config is not None and server.config.validation.val_dataloader is not None
    return "validation.val_dataloader" if named else f"{type(server).__name__}.val_dataloader"


def make_callbacks(server: Any) -> list[Callback]:
    """The callbacks of `configure_callbacks`, then those of `training.callbacks`.

    Raises:
        ConfigError: see `check_components`.
        UserCodeError: the method or a class raised, or a class makes something else than a callback.
    """
    own = f"{type(server).__name__}.configure_callbacks"
    callbacks: list[Callback] = call_user(own, lambda: list(server.configure_callbacks()))
    for position, component in enumerate(server.config.training.callbacks):
        callback = _make(server, component, f"training.callbacks[{position}]")
        if not isinstance(callback, Callback):
            text = (
                f"training.callbacks[{position}].class must make a Callback, but {component.class_} made {callback!r}"
            )
            raise UserCodeError(text)
        callbacks.append(callback)
    for callback in callbacks:
        _require_signatures(type(callback))
        _warn_of(type(callback), dict(_uncalled_methods(type(callback), Callback)))
    return callbacks


def _make_part(server: Any, component: "Component", key: str, *given: Any) -> Any:
    part = _make(server, component, f"training.{key}", *given)
    require_part(key, part, must=f"training.{key}.class must make", but=f"{component.class_} made")
    return part


def _make(server: Any, component: "Component", key: str, *given: Any) -> Any:
    loaded = _load(server.config, component, key, len(given))
    if isinstance(loaded, LiveObject):
        loaded = server.copy_live(loaded)
    return call_user(f"{key}: {component.class_}", partial(loaded, *given, **component.args))


def _load(config: "StudyConfig", component: "Component", key: str, num_given: int) -> Any:
    """The class of a component, which takes `num_given` arguments and those of study.json after them."""
    loaded = load_class(component.class_, config.study_dir, kind=f"{key}.class")
    if key == "training.criterion" and _class_of(loaded) is None:
        # It is the loss itself.
        num_given = len(("outputs", "targets"))
    try:
        signature = inspect.signature(loaded)
    except (TypeError, ValueError):
        # Some classes in C have none.
        return loaded
    try:
        signature.bind(*[None] * num_given, **component.args)
    except TypeError as error:
        names = [*signature.parameters][num_given:]
        unknown = next((name for name in component.args if name not in names), "")
        meant = nearest(unknown, names) if unknown else None
        hint = f"write {meant}" if meant else f"it takes {one_of(names) if names else 'none'}"
        if isinstance(loaded, LiveObject):
            hint = f"it is {loaded!r}: give the class, or a function that makes it"
        raise ConfigError(f"{key}.args do not fit {component.class_}: {error}; {hint}") from error
    return loaded
