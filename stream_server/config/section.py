"""What all parts of study.json have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Section(BaseModel):
    """One object of study.json: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def filled_in(description: str) -> Any:
    """A key whose default follows from other keys: `filling.py` writes it before the models see it."""
    return Field(default=None, description=description)


def or_short_form(short_form: JsonSchemaValue, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """The JSON schema of a section that may also be written in a shorter form."""
    reference = handler(core)
    schema = handler.resolve_ref_schema(reference)
    as_object = dict(schema)
    schema.clear()
    schema["anyOf"] = [short_form, as_object]
    return reference
