"""The reference has every public name and no other, and every name has a docstring."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import stream_server
from stream_server import StreamServer, TorchServer, backends, client_api

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
API = (REFERENCE / "api.md").read_text()
SERVER_CLASS = (REFERENCE / "server-class.md").read_text()
PUBLIC = [(module, name) for module in (stream_server, client_api, backends) for name in module.__all__]
# Called by the study on its way; a user never defines or calls them.
INTERNAL = {"enter_rollout", "enter_study", "enter_stream", "hold_attributes", "make_loader", "remember_calls"}
INTERNAL |= {"take_steps"}


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=lambda it: getattr(it, "__name__", it))
def test_a_public_name_is_in_the_reference(module: object, name: str) -> None:
    found = getattr(module, name)
    assert f"### `{name}`\n\n::: {found.__module__}.{name}\n" in API


@pytest.mark.parametrize("module", [stream_server, client_api, backends], ids=lambda it: it.__name__)
def test_what_the_reference_has_of_a_module_is_what_it_exports(module: ModuleType) -> None:
    sections = [it for it in API.split("\n## ") if f"`from {module.__name__} import " in it]
    listed = [name for section in sections for name in re.findall(r"^### `(\w+)`$", section, re.MULTILINE)]
    assert sorted(listed) == sorted(module.__all__)


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=lambda it: getattr(it, "__name__", it))
def test_a_public_name_and_each_of_its_methods_has_a_docstring(module: object, name: str) -> None:
    found = getattr(module, name)
    assert inspect.getdoc(found)
    members = vars(found).items() if isinstance(found, type) else ()
    public = {
        it for it, value in members if not it.startswith("_") and (callable(value) or isinstance(value, property))
    }
    assert {it for it in public if not inspect.getdoc(getattr(found, it))} == set()


@pytest.mark.parametrize("server", [StreamServer, TorchServer])
def test_the_page_of_the_server_class_names_what_a_user_defines_or_calls(server: type) -> None:
    public = {it for it, value in vars(server).items() if not it.startswith(("_", "on_")) and it not in INTERNAL}
    public -= {it for it in public if isinstance(vars(server)[it], int | str | None)} - {"automatic_optimization"}
    assert {it for it in public if not re.search(rf"`(?:self\.)?{it}\b", SERVER_CLASS)} == set()
