"""As much of a faulty study.json as can be understood, so that its other mistakes are found as well."""

from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

Location = tuple[int | str, ...]
Model = TypeVar("Model", bound=BaseModel)


def draft(model: type[Model], raw: dict[str, Any], bad: set[Location], here: Location = ()) -> Model:
    """Build `model` from the valid parts of `raw`; reading a part that is `bad` or missing raises AttributeError.

    Args:
        model: the model that refused `raw`.
        raw: what it refused.
        bad: the locations of the errors, as pydantic gives them.
        here: the location of `raw` itself.
    """
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        location = (*here, key)
        if location in bad or (key not in raw and _is_filled_in(field)):
            unknown.append(name)
        elif key not in raw:
            continue
        elif not any(error[: len(location)] == location for error in bad):
            kind: Any = Annotated[field.annotation, field]
            values[name] = TypeAdapter(kind).validate_python(raw[key])
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            values[name] = draft(field.annotation, raw[key], bad, location)
        else:
            unknown.append(name)
    drafted = model.model_construct(**values)
    for name in unknown:
        drafted.__dict__.pop(name, None)
    return drafted


def _is_filled_in(field: FieldInfo) -> bool:
    """Whether the key has no default of its own: it is required, or its value follows from other keys."""
    return field.is_required() or (
        field.default is None and field.default_factory is None and NoneType not in get_args(field.annotation)
    )
