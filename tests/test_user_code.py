"""Classes that a study names are found, and a mistake in the name or the file is told with its key."""

import colorsys
import hashlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_server.errors import ConfigError, UserCodeError
from stream_server.user_code import call_user, digest_of, load_class


@pytest.fixture(autouse=True)
def _imports_are_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("sys.path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name, module in list(sys.modules.items()):
        # Others stay: their packages know them by then, and a second import would make them anew.
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.modules.update(before)


def load(name: str, folder: Path) -> object:
    return load_class(name, folder, kind="training.model.class")


def test_a_class_is_found_in_a_file_and_in_a_package(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("class Model: ...\ndef make(): ...\n")
    assert getattr(load("parts.py:Model", tmp_path), "__name__", None) == "Model"
    assert getattr(load(f"{tmp_path}/parts.py:make", tmp_path / "elsewhere"), "__name__", None) == "make"
    assert load("collections:Counter", tmp_path).__class__ is type


def test_a_file_is_run_once_however_many_of_its_classes_are_named(tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text("class Block: ...\n")
    (tmp_path / "nets.py").write_text("from blocks import Block\nclass Net(Block): ...\nclass Other: ...\n")
    net = load("nets.py:Net", tmp_path)
    assert isinstance(net, type)
    assert issubclass(net, load("blocks.py:Block", tmp_path))  # type: ignore[arg-type]
    assert load("nets.py:Net", tmp_path) is net


def test_files_of_the_same_name_in_two_folders_are_two(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(f"def name(): return {name!r}\n")
        (tmp_path / name / "helper.py").write_text(f"own = {name!r}\n")
    assert [load("model.py:name", tmp_path / name)() for name in "ab"] == ["a", "b"]  # type: ignore[operator]
    assert importlib.import_module("helper").own == "b"


def test_the_files_of_a_study_import_each_other_and_none_is_taken_for_a_module_of_python(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("1 / 0")
    (tmp_path / "layers.py").write_text("Layer = dict\n")
    (tmp_path / "nets.py").write_text("from colorsys import rgb_to_hsv\nfrom layers import Layer\n")
    # As if the path had come from whoever started this: a notebook in the folder of its study, for instance.
    sys.path.insert(0, str(tmp_path))
    sys.modules.pop("colorsys")
    assert load("nets.py:Layer", tmp_path) is dict


@pytest.mark.parametrize("own", ["colorsys.py", "colorsys"])
@pytest.mark.parametrize(
    "code", ["from colorsys import mixed", "import colorsys.hues", "import colorsys; colorsys.mixed"]
)
def test_whoever_means_a_file_of_the_study_that_is_named_as_a_module_of_python_is_told_to_rename_it(
    tmp_path: Path, own: str, code: str
) -> None:
    (tmp_path / own).mkdir()
    (tmp_path / "nets.py").write_text(f"{code}\n")
    with pytest.raises(UserCodeError) as raised:
        load("nets.py:Net", tmp_path)
    advice = f": colorsys is {colorsys.__file__}, which comes before {tmp_path}/{own}: rename yours"
    assert str(raised.value).endswith(advice)
    with pytest.raises(UserCodeError) as raised:
        call_user("Net.forward", exec, code)
    assert str(raised.value).endswith(advice)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Model", 'training.model.class must be "FILE.py:Class" or "package.module:Class", but is "Model"'),
        ("missing.py:Model", "training.model.class must name a class, but there is no file .*missing.py$"),
        ("prts.py:Model", r"but there is no file .*prts\.py: write parts\.py$"),
        ("token.py:Model", r"must name a class, but token\.py has the name of a module of Python: rename it$"),
        ("parts.py:Modell", r"must name a class, but parts\.py has no Modell: write Model$"),
        ("parts.py:Mdl", "must name a class, but parts.py has no Mdl"),
        ("parts.py:Server", "must name a class, but parts.py has no Server$"),
        ("collections:Conter", "must name a class, but collections has no Conter: write Counter"),
        ("parts.py:number", "must name a class, but parts.py:number is 3"),
        ("no_such_package.nets:Net", "but there is no module no_such_package: install the package"),
        ("collections.nets:Net", "but there is no module collections.nets"),
    ],
)
def test_what_is_not_there_is_the_studys_error(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "parts.py").write_text("from stream_server import StreamServer\nnumber = 3\ndef Model(): ...\n")
    (tmp_path / "token.py").write_text("def Model(): ...\n")
    with pytest.raises(ConfigError, match=told):
        load(name, tmp_path)


@pytest.mark.parametrize("statement", ["1 / 0", "raise SystemExit", "import no_such_package"])
@pytest.mark.parametrize("name", ["faulty.py:Model", "faulty:Model"])
def test_a_file_that_raises_is_the_users_error_each_time(tmp_path: Path, name: str, statement: str) -> None:
    (tmp_path / "faulty.py").write_text(statement)
    for _ in range(2):
        with pytest.raises(UserCodeError, match=r"importing .*faulty.* raised \w+ in line 1( of .*faulty\.py)?: "):
            load(name, tmp_path)


def test_an_error_of_an_import_names_the_line_of_the_users_code_and_not_that_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import json\n\nsizes = json.loads('{')\n")
    (tmp_path / "faulty.py").write_text("from helper import sizes\n")
    with pytest.raises(UserCodeError) as raised:
        load("faulty.py:Model", tmp_path)
    assert f"raised JSONDecodeError in line 3 of {tmp_path}/helper.py: Expecting" in str(raised.value)


def test_a_mistake_in_the_syntax_names_its_place_once(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text("x = 1\nclass Model\n")
    with pytest.raises(UserCodeError, match=r"raised SyntaxError: expected ':' \(faulty\.py, line 2\)"):
        load("faulty.py:Model", tmp_path)


def test_a_missing_package_is_named_with_the_python_that_lacks_it(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text("import no_such_package.nets\n")
    with pytest.raises(UserCodeError) as raised:
        load("faulty.py:Model", tmp_path)
    assert str(raised.value).endswith(f"{sys.executable} has no package no_such_package, install it there")


def test_the_digest_of_a_class_is_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("class S: ...\n")
    first = digest_of("server.py:S", tmp_path)
    assert first == hashlib.sha256(b"class S: ...\n").hexdigest()
    (tmp_path / "server.py").write_text("class S: lr = 1\n")
    assert digest_of("server.py:S", tmp_path) != first
    assert digest_of("package.module:S", tmp_path) == digest_of("missing.py:S", tmp_path) == ""
