"""The JSON schema of study.json, for editors."""

from typing import Any

from stream_server.config.models import StudyConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """What `stream-server --schema` prints and configs/study.schema.json holds."""
    schema = _tidied(StudyConfig.model_json_schema(by_alias=True))
    schema["properties"] = {
        "$schema": {"type": "string", "description": "Path of this schema, for editors."},
        **schema["properties"],
    }
    return {"$schema": DIALECT, "title": "study.json of Stream Server", **schema}


def _tidied(node: Any) -> Any:
    """Without generated titles, and without a default of null where null is no value.

    A default that follows from other keys stands as None in the models, and in the key's description.
    """
    if isinstance(node, list):
        return [_tidied(item) for item in node]
    if not isinstance(node, dict):
        return node
    allows_null = {"type": "null"} in node.get("anyOf", [])
    return {
        key: _tidied(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and value is None and not allows_null)
    }
