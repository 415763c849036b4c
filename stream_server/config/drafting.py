"""As much of a faulty study.json as can be understood, so that its other mistakes are found as well."""

from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

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
        inner: type[Any] | None = model_in(field.annotation)
        if location in bad or (key not in raw and _has_no_default(field)):
            unknown.append(name)
        elif key not in raw:
            continue
        elif not _is_faulty(location, bad):
            values[name] = _valid(field, raw[key])
        elif inner is not None and field.annotation is inner:
            values[name] = draft(inner, raw[key], bad, location)
        elif inner is not None and _is_object_of_entries(field.annotation):
            values[name] = _draft_entries(inner, raw[key], bad, location)
        else:
            unknown.append(name)
    drafted = model.model_construct(**values)
    for name in unknown:
        drafted.__dict__.pop(name, None)
    return drafted


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of an annotation such as `Job`, `EarlyStop | None` or `dict[str, SampleField] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (model_in(argument) for argument in get_args(annotation))
    return next((model for model in inner if model is not None), None)


def _draft_entries(model: type[Model], raw: dict[str, Any], bad: set[Location], here: Location) -> dict[str, Model]:
    """Every entry of an object whose keys are the user's own; of a faulty one nothing but the key is known."""
    return {
        key: model.model_construct() if _is_faulty((*here, key), bad) else model.model_validate(value)
        for key, value in raw.items()
    }


def _valid(field: FieldInfo, value: Any) -> Any:
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(kind).validate_python(value)


def _is_object_of_entries(annotation: Any) -> bool:
    return dict in (get_origin(annotation), *(get_origin(choice) for choice in get_args(annotation)))


def _is_faulty(location: Location, bad: set[Location]) -> bool:
    return any(error[: len(location)] == location for error in bad)


def _has_no_default(field: FieldInfo) -> bool:
    """Whether the key is required, or its value follows from other keys."""
    return field.is_required() or (
        field.default is None and field.default_factory is None and NoneType not in get_args(field.annotation)
    )
