"""Whether the files and classes that a study names are there."""

from collections.abc import Iterator

from stream_server.config.class_reference import class_problem
from stream_server.config.design_file import DesignFile
from stream_server.config.models import StudyConfig
from stream_server.config.parameters import SAMPLERS
from stream_server.config.placeholders import BUILT_IN
from stream_server.config.problems import Problem


def _server_class_is_there(config: StudyConfig) -> Iterator[Problem]:
    yield from class_problem("server.class", config.server.class_, config.study_dir)


def _sampler_class_is_there(config: StudyConfig) -> Iterator[Problem]:
    if config.parameters.sampler not in SAMPLERS:
        yield from class_problem("parameters.sampler", config.parameters.sampler, config.study_dir)


def _design_file_is_sound(config: StudyConfig) -> Iterator[Problem]:
    if config.parameters.file is None:
        return
    path = "parameters.file"
    try:
        design = DesignFile.read(config.parameters.file)
    except ValueError as error:
        yield Problem(
            path=path, found=str(error), instead="Name a CSV file: a header of names, one row of numbers per simulation"
        )
        return
    for name in sorted(set(design.names) & set(BUILT_IN)):
        yield Problem(path=path, found=f"{{{name}}} already stands for something else", instead="Rename the column")
    training, validation = config.study.simulations, config.validation.simulations
    needed = training + validation
    if len(design.rows) < needed:
        yield Problem(
            path=path,
            found=f"it has {len(design.rows)} rows for {training} + {validation} simulations",
            instead="Add rows, or write fewer simulations (study.simulations, validation.simulations)",
        )
    elif len(design.rows) == needed and config.simulation.on_failure == "redraw":
        yield Problem(
            path="simulation.on_failure",
            found=f'"redraw" would have no row to take: {config.parameters.file.name} has {needed}, all in use',
            instead='Add rows to the file, or write "give_up"',
        )


FILE_CHECKS = (_server_class_is_there, _sampler_class_is_there, _design_file_is_sound)
