"""What must hold between the keys of a study, and between a study and the files it names."""

from collections.abc import Callable, Iterator

from stream_server.config.availability import AVAILABILITY_CHECKS
from stream_server.config.buffer_checks import BUFFER_CHECKS
from stream_server.config.command_checks import COMMAND_CHECKS
from stream_server.config.file_checks import FILE_CHECKS
from stream_server.config.models import StudyConfig
from stream_server.config.problems import Problem
from stream_server.config.usage_checks import USAGE_CHECKS

Check = Callable[[StudyConfig], Iterator[Problem]]

CHECKS: tuple[Check, ...] = (*USAGE_CHECKS, *COMMAND_CHECKS, *FILE_CHECKS, *BUFFER_CHECKS, *AVAILABILITY_CHECKS)


def find_problems(config: StudyConfig, *, is_draft: bool = False) -> Iterator[Problem]:
    """Run every check; one that needs a part which a draft does not have is left out."""
    for check in CHECKS:
        try:
            yield from check(config)
        except AttributeError:
            if not is_draft:
                raise
