"""Placeholders such as `{initial:.3f}` in the command and the templates of a simulation."""

import re
from collections.abc import Iterator, Mapping

from stream_server.config.parameters import DesignFile
from stream_server.config.problems import Problem, nearest, shown
from stream_server.config.sections import Parameters
from stream_server.config.study import StudyConfig
from stream_server.storage.disk import read_text
from stream_server.storage.typed import listed

PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)(?::([^{}]*))?\}")
IN_BRACES = re.compile(r"(?<!\$)\{\s*([A-Za-z_]\w*)[^{}]*\}")
MANY_DIGITS = re.compile(r"[0-9]{4}")
RANKS = "{ranks}"
EXPECTED_LR_STEPS = "{expected_lr_steps}"
# Open MPI 5 changes these among the arguments of the program, too, or counts them and their values.
OPTIONS_OF_MPIRUN = frozenset({"--bind-to", "--map-by", "--rank-by", "--mca", "--gmca"})
BUILT_IN: Mapping[str, int | str] = {"simulation": 0, "attempt": 0, "seed": 0, "study_dir": ""}
EXAMPLE_OF_A_PARAMETER = 0.5

Examples = Mapping[str, float | int | str]


def _parameters_do_not_hide_placeholders(config: StudyConfig) -> Iterator[Problem]:
    for name in config.parameters.scalars:
        if name in BUILT_IN:
            yield Problem(
                f"parameters.bounds.{name}",
                f"{{{name}}} already stands for something else in the command",
                f"Choose another name, such as {shown(name + '_0')}",
            )


def _command_is_sound(config: StudyConfig) -> Iterator[Problem]:
    simulation = config.simulation
    of_one = {*BUILT_IN, *(_parameter_names(config.parameters) or ())} - {"study_dir"}
    for position, element in enumerate(simulation.command or ()):
        problems = [*_problems_in(element, config, is_template=False)]
        if simulation.per_worker != 1:
            text = "is that of one simulation, and simulation.per_worker lets a process compute several"
            instead = "Leave it out: the client API gives a worker the parameters of each simulation"
            names = (name for name, _ in PLACEHOLDER.findall(element) if name in of_one)
            problems += [(f"{{{name}}} {text}", instead) for name in names]
        if simulation.uses_mpirun and element == ":":
            problems.append(('":" separates programs on the command line of mpirun', "Start a script that adds it"))
        if simulation.uses_mpirun and element in OPTIONS_OF_MPIRUN:
            found = f"Open MPI's mpirun takes {shown(element)} for an option of its own wherever it stands"
            problems.append((found, "Start a script that adds it"))
        for found, instead in problems:
            yield Problem(f"simulation.command[{position}]", found, instead)


def _mpirun_has_values(config: StudyConfig) -> Iterator[Problem]:
    for position, word in enumerate(config.simulation.job.mpirun or ()):
        for found in IN_BRACES.finditer(word):
            if found.group() != RANKS:
                yield Problem(
                    f"simulation.job.mpirun[{position}]",
                    f"{found.group()} would not be filled in",
                    f"Write {RANKS}, which stands for simulation.ranks; all else is a matter of the command",
                )


def _templates_have_values(config: StudyConfig) -> Iterator[Problem]:
    for position, template in enumerate(config.simulation.templates):
        path = f"simulation.templates[{position}]"
        try:
            text = read_text(template)
        except FileNotFoundError:
            found, instead = f"there is no file {template}", "Write a path relative to the folder of study.json"
            yield Problem(path, found, instead)
            continue
        except (OSError, UnicodeDecodeError) as error:
            yield Problem(path, f"{template} cannot be read ({error})", "Name a text file in UTF-8")
            continue
        for found, instead in _problems_in(text, config, is_template=True):
            yield Problem(path, f"in {template.name}, {found}", instead)


def _examples(config: StudyConfig) -> Examples | None:
    """A value for each placeholder; None if the names of the parameters are unknown, which is another problem."""
    names = _parameter_names(config.parameters)
    if names is None:
        return None
    whole = config.parameters.whole
    return {**{name: 1 if name in whole else EXAMPLE_OF_A_PARAMETER for name in names}, **BUILT_IN}


def _parameter_names(parameters: Parameters) -> tuple[str, ...] | None:
    """The names of the parameters in order; None when the file that should tell cannot be read."""
    if parameters.bounds is not None:
        return tuple(parameters.scalars)
    if parameters.file is None:
        return None
    try:
        return DesignFile.read(parameters.file).names
    except ValueError:
        return None


def _problems_in(text: str, config: StudyConfig, *, is_template: bool) -> Iterator[tuple[str, str]]:
    """Say what was found, and what to write instead, for each placeholder of `text` that cannot be filled in.

    Braces that hold no name (JSON, a block of C) are text, and so is a shell's `${NAME}`. A template, which is a file
    of its own language, may also hold anything else in braces that does not look like a placeholder.
    """
    examples = _examples(config)
    if examples is None:
        return
    for written, name in dict.fromkeys((match[0], match[1]) for match in IN_BRACES.finditer(text)):
        placeholder = PLACEHOLDER.fullmatch(written)
        if placeholder is not None:
            yield from _problem_of(name, placeholder[2], examples)
        elif name in examples and not is_template:
            yield f"{shown(written)} would not be filled in", f"Write {{{name}}} or {{{name}:FORMAT}}"


def _problem_of(name: str, form: str | None, examples: Examples) -> Iterator[tuple[str, str]]:
    written = f"{{{name}}}" if form is None else f"{{{name}:{form}}}"
    if name not in examples:
        meant = nearest(name, examples)
        known = listed([f"{{{example}}}" for example in examples])
        instead = f"Write {{{meant}}}, or add {name} to parameters.bounds" if meant else f"Write one of {known}"
        yield f"{written} is neither a parameter nor built in", instead
        return
    try:
        if MANY_DIGITS.search(form or ""):
            raise ValueError("it asks for thousands of characters")
        format(examples[name], form or "")
    except ValueError as error:
        example = {float: ".6g", int: "06d", str: "s"}[type(examples[name])]
        yield f"{written} has a format that does not fit ({error})", f"Write {{{name}}}, or {{{name}:{example}}}"


COMMAND_CHECKS = (
    _parameters_do_not_hide_placeholders,
    _command_is_sound,
    _mpirun_has_values,
    _templates_have_values,
)
