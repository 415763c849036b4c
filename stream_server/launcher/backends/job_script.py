"""The two scripts that lead from a batch scheduler to the command of a job.

What the scheduler stores, and others may see, is the first script: it names the second one, in the job's own folder,
which nobody else may read and which has the environment in it.
"""

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from stream_server.launcher.backends.backend import EXIT_FILE, LOG_FILE, JobSpec
from stream_server.launcher.backends.scheduler import JobKind

JOB_FILE = "job.sh"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]+")
# What the node, or the scheduler on it, says better than the shell in which the launcher was started.
OF_THE_NODE = (
    *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR"),
)
USER = ("HOME", "LOGNAME", "SHELL", "USER")
# Slurm says what of its own environment a step gets: all.
NOT_KEPT = ("SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV", "SLURM_JWT")

SETUP = """\
{line}
code=$?
if [ $code != 0 ]; then
    printf '%s\\n' {told}" $code" >&2
    echo $code >{exit_file}
    exit $code
fi
"""


def job_name(study: str, folder: Path, token: str) -> str:
    """The name of the job that runs in this folder, such as heat-12-attempt-0-1f0c…; `token` makes it the only one."""
    words = [study, *folder.parts[-2:], token]
    return "-".join(UNUSUAL.sub("_", word) for word in words)


def write_scripts(spec: JobSpec, kind: JobKind, variables: Sequence[str] = ()) -> str:
    """Write the second script into the folder of a job of this `kind`, and return the first one, for bash, to submit.

    `variables` are the beginnings of the names of the scheduler's own environment variables.

    Raises:
        OSError: the file cannot be written, or is there.
    """
    write_new(spec.folder / JOB_FILE, second_script(spec, kind, variables))
    return first_script(spec.folder, variables, has_setup=bool(kind.resources.setup))


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet, and that nobody else may read."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        # Variables of the environment, and paths, may be no text: their bytes stay what they are.
        stream.write(os.fsencode(text))


def first_script(folder: Path, variables: Sequence[str], *, has_setup: bool) -> str:
    """The script that the scheduler gets. It empties the environment but for what is the scheduler's own.

    `variables` are the beginnings of the names of those. The lines of `setup` need a login shell, in which `module` is
    known.
    """
    options = "-l" if has_setup else "--noprofile --norc"
    own = " ".join(f'"${{!{beginning}@}}"' for beginning in variables)
    return f"""\
#!/bin/bash
cd {shlex.quote(str(folder))} && exec >>{LOG_FILE} 2>&1 || exit
kept=()
for name in {own} {" ".join((*OF_THE_NODE, *USER))}; do
    case $name in {"|".join(NOT_KEPT)}) continue ;; esac
    [ -z "${{!name+is set}}" ] || kept+=("$name=${{!name}}")
done
exec /usr/bin/env -i "${{kept[@]}}" /bin/bash {options} {JOB_FILE}
"""


def second_script(spec: JobSpec, kind: JobKind, variables: Sequence[str]) -> str:
    """The script in the job's folder: environment, `setup`, command; `variables` are as in `first_script`."""
    exports = _exports(spec.environment, kind.resources.environment, tuple(variables))
    lines = [f"cd {shlex.quote(str(spec.folder))} || exit", *exports]
    for line in kind.resources.setup:
        told = shlex.quote(f"{kind.section}.setup: `{line}` ended with exit code")
        lines.append(SETUP.format(line=line, told=told, exit_file=EXIT_FILE))
    return "\n".join([*lines, f"exec {shlex.join(spec.shell_command)}", ""])


def _exports(environment: Mapping[str, str], own: Collection[str], variables: tuple[str, ...]) -> list[str]:
    """The exports of variables that a shell can set; a job has the scheduler's own variables, not the launcher's.

    Those of the study's `own` it has nevertheless.
    """
    return [
        f"export {name}={shlex.quote(value)}"
        for name, value in environment.items()
        if NAME.fullmatch(name) and (name in own or not (name.startswith(variables) or name in OF_THE_NODE))
    ]
