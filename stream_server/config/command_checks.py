"""Whether every {placeholder} of the command and of the templates has a value, and a format that fits it."""

import os
from collections.abc import Iterator

from stream_server.config.design_file import parameter_names
from stream_server.config.models import StudyConfig
from stream_server.config.placeholders import BUILT_IN, Examples, placeholder_problems
from stream_server.config.problems import Problem, shown

EXAMPLE_OF_A_PARAMETER = 0.5


def _parameters_do_not_hide_placeholders(config: StudyConfig) -> Iterator[Problem]:
    for name in config.parameters.bounds or {}:
        if name in BUILT_IN:
            yield Problem(
                path=f"parameters.bounds.{name}",
                found=f"{{{name}}} already stands for something else in the command",
                instead=f"Choose another name, such as {shown(name + '_0')}",
            )


def _command_has_values(config: StudyConfig) -> Iterator[Problem]:
    if config.simulation.command is None:
        return
    examples = _examples(config)
    for position, element in enumerate(config.simulation.command):
        for found, instead in placeholder_problems(element, examples, is_template=False):
            yield Problem(path=f"simulation.command[{position}]", found=found, instead=instead)


def _templates_are_there(config: StudyConfig) -> Iterator[Problem]:
    for position, template in enumerate(config.simulation.templates):
        if not os.path.isfile(template):
            yield Problem(
                path=f"simulation.templates[{position}]",
                found=f"there is no file {template}",
                instead="Write a path relative to the folder of study.json",
            )


def _templates_have_values(config: StudyConfig) -> Iterator[Problem]:
    for position, template in enumerate(config.simulation.templates):
        path = f"simulation.templates[{position}]"
        if not os.path.isfile(template):
            continue
        try:
            text = template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            yield Problem(path=path, found=f"{template} cannot be read ({error})", instead="Name a text file in UTF-8")
            continue
        for found, instead in placeholder_problems(text, _examples(config), is_template=True):
            yield Problem(path=path, found=f"in {template.name}, {found}", instead=instead)


def _examples(config: StudyConfig) -> Examples:
    """A value for each placeholder there is; without names of parameters any name could be one."""
    names = parameter_names(config.parameters)
    return _AnyName() if names is None else {**dict.fromkeys(names, EXAMPLE_OF_A_PARAMETER), **BUILT_IN}


class _AnyName(dict[str, float | int | str]):
    """Has every name: used when parameters.file cannot be read, which is a problem of its own."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> float | int | str:
        return BUILT_IN.get(name, EXAMPLE_OF_A_PARAMETER)


COMMAND_CHECKS = (
    _parameters_do_not_hide_placeholders,
    _command_has_values,
    _templates_are_there,
    _templates_have_values,
)
