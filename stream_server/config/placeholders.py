"""`{initial}` and `{initial:.3f}`: what stands for a value in the command and the templates of a simulation."""

import os
import re
from collections.abc import Iterator, Mapping

from stream_server.config.parameters import DesignFile
from stream_server.config.problems import Problem, nearest, shown
from stream_server.config.sections import Parameters
from stream_server.config.study import StudyConfig

PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)(?::([^{}]*))?\}")
IN_BRACES = re.compile(r"(?<!\$)\{\s*([A-Za-z_]\w*)[^{}]*\}")
MANY_DIGITS = re.compile(r"[0-9]{4}")
RANKS = "{ranks}"
# Open MPI 5 changes these among the arguments of the program, too, or counts them and their values.
OPTIONS_OF_MPIRUN = frozenset({"--bind-to", "--map-by", "--rank-by", "--mca", "--gmca"})
BUILT_IN: Mapping[str, int | str] = {"simulation": 0, "attempt": 0, "seed": 0, "study_dir": ""}
EXAMPLE_OF_A_PARAMETER = 0.5

Examples = Mapping[str, float | int | str]


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
        for found, instead in _problems_in(element, examples, is_template=False):
            yield Problem(path=f"simulation.command[{position}]", found=found, instead=instead)


def _mpirun_has_values(config: StudyConfig) -> Iterator[Problem]:
    for position, word in enumerate(config.simulation.job.mpirun or ()):
        for found in IN_BRACES.finditer(word):
            if found.group() != RANKS:
                yield Problem(
                    path=f"simulation.job.mpirun[{position}]",
                    found=f"{found.group()} would not be filled in",
                    instead=f"Write {RANKS}, which stands for simulation.ranks; all else is a matter of the command",
                )


def _command_has_no_lonely_colon(config: StudyConfig) -> Iterator[Problem]:
    simulation = config.simulation
    for position, element in enumerate(simulation.command or ()):
        if simulation.uses_mpirun and element == ":":
            yield Problem(
                path=f"simulation.command[{position}]",
                found='":" separates programs on the command line of mpirun',
                instead="Start a script that adds it",
            )


def _mpirun_leaves_the_command_alone(config: StudyConfig) -> Iterator[Problem]:
    simulation = config.simulation
    for position, element in enumerate(simulation.command or ()):
        if simulation.uses_mpirun and element in OPTIONS_OF_MPIRUN:
            yield Problem(
                path=f"simulation.command[{position}]",
                found=f"Open MPI's mpirun takes {shown(element)} for an option of its own wherever it stands",
                instead="Start a script that adds it",
            )


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
        for found, instead in _problems_in(text, _examples(config), is_template=True):
            yield Problem(path=path, found=f"in {template.name}, {found}", instead=instead)


def _examples(config: StudyConfig) -> Examples:
    """A value for each placeholder there is; without names of parameters any name could be one."""
    names = _parameter_names(config.parameters)
    return _AnyName() if names is None else {**dict.fromkeys(names, EXAMPLE_OF_A_PARAMETER), **BUILT_IN}


class _AnyName(dict[str, float | int | str]):
    """Has every name: used when parameters.file cannot be read, which is a problem of its own."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> float | int | str:
        return BUILT_IN.get(name, EXAMPLE_OF_A_PARAMETER)


def _parameter_names(parameters: Parameters) -> tuple[str, ...] | None:
    """The names of the parameters in order; None when the file that should tell cannot be read."""
    if parameters.bounds is not None:
        return tuple(parameters.bounds)
    if parameters.file is None:
        return None
    try:
        return DesignFile.read(parameters.file).names
    except ValueError:
        return None


def _problems_in(text: str, examples: Examples, *, is_template: bool) -> Iterator[tuple[str, str]]:
    """What was found and what to write instead, for each placeholder of `text` that cannot be filled in.

    Braces that hold no name (JSON, a block of C) are text, and so is a shell's `${NAME}`. A template may
    also hold anything else in braces that does not look like a placeholder.

    Args:
        text: an element of the command, or a template.
        examples: a value for each placeholder there is.
        is_template: whether `text` is a file of its own language rather than an argument.
    """
    written = dict.fromkeys(match.group() for match in IN_BRACES.finditer(text))
    for each in written:
        match = PLACEHOLDER.fullmatch(each)
        if match is not None:
            problem = _problem_of(match[1], match[2], examples)
        else:
            named = IN_BRACES.fullmatch(each)
            assert named is not None
            problem = None if is_template else _problem_of_form(each, named[1], examples)
        if problem is not None:
            yield problem


def _problem_of(name: str, form: str | None, examples: Examples) -> tuple[str, str] | None:
    written = f"{{{name}}}" if form is None else f"{{{name}:{form}}}"
    if name not in examples:
        meant = nearest(name, examples)
        known = ", ".join(f"{{{example}}}" for example in examples)
        instead = f"Write {{{meant}}}, or add {name} to parameters.bounds" if meant else f"Write one of {known}"
        return f"{written} is neither a parameter nor built in", instead
    try:
        if MANY_DIGITS.search(form or ""):
            raise ValueError("it asks for thousands of characters")
        format(examples[name], form or "")
    except ValueError as error:
        example = {float: ".6g", int: "06d", str: "s"}[type(examples[name])]
        return f"{written} has a format that does not fit ({error})", f"Write {{{name}}}, or {{{name}:{example}}}"
    return None


def _problem_of_form(written: str, name: str, examples: Examples) -> tuple[str, str] | None:
    if name not in examples:
        return None
    return f"{shown(written)} would not be filled in", f"Write {{{name}}} or {{{name}:FORMAT}}"


COMMAND_CHECKS = (
    _parameters_do_not_hide_placeholders,
    _command_has_values,
    _command_has_no_lonely_colon,
    _mpirun_leaves_the_command_alone,
    _mpirun_has_values,
    _templates_are_there,
    _templates_have_values,
)
