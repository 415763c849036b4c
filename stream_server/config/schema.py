"""The JSON schema of study.json, for editors."""

from typing import Any

from stream_server.config.models import StudyConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """What `stream-server --schema` prints and configs/study.schema.json holds."""
    schema = StudyConfig.model_json_schema(by_alias=True)
    schema["properties"] = {
        "$schema": {"type": "string", "description": "Path of this schema, for editors."},
        **schema["properties"],
    }
    for model in (schema, *schema["$defs"].values()):
        for key in model.get("properties", {}).values():
            _drop_default_that_is_resolved(key)
            key.pop("title", None)
    return {"$schema": DIALECT, **schema, "title": "study.json of Stream Server"}


def _drop_default_that_is_resolved(key: dict[str, Any]) -> None:
    """A default that follows from other keys stands as None in the models, which is no value of the key."""
    allows_null = any(choice.get("type") == "null" for choice in key.get("anyOf", []))
    if key.get("default", ...) is None and not allows_null:
        del key["default"]
