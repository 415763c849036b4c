"""What all parts of study.json have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """One object of study.json: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def filled_in(description: str) -> Any:
    """A key whose default follows from other keys: `filling.py` writes it before the models see it."""
    return Field(default=None, description=description)
