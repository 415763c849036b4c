"""Several commands of `stream-server`, each in a fork of one process, which has imported torch and Fabric once."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.launch import alone


def in_forks(commands: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """The exit code and the output of `stream-server ARGUMENTS…` for each list of arguments."""
    with tempfile.TemporaryDirectory() as folder:
        launch = alone(["-m", "tests.support.forked_commands", folder, json.dumps([*map(list, commands)])])
        done = subprocess.run(launch.argv, env=launch.environment, stdout=subprocess.PIPE, text=True, check=True)
        outputs = [Path(folder, str(number)).read_text() for number in range(len(commands))]
    return list(zip(json.loads(done.stdout), outputs, strict=True))


def _run(arguments: list[str], output: Path) -> int:
    """Run the command in a fork; its exit code."""
    pid = os.fork()
    if pid == 0:
        with output.open("w") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())
        exit_code = 70
        try:
            exit_code = main(arguments)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    importlib.import_module("stream_server.server.training.torch.framework")
    from stream_server.server.commands.cli import main

    print(json.dumps([_run(each, Path(sys.argv[1], str(i))) for i, each in enumerate(json.loads(sys.argv[2]))]))
