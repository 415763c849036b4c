"""python -m tests.faults.fuzz.process TARGET [OPTION OF LIBFUZZER …] FOLDER …: one target, until it fails or ends.

What is found to be new goes into the first folder. A file in its place is one input, which is tried again.
"""

import hashlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import atheris

from tests.faults.fuzz import scratch
from tests.faults.fuzz.mutation import mutated_json
from tests.faults.fuzz.target import load


def main() -> None:
    """Run it, in a process below this one, since it never returns."""
    if scratch.VARIABLE not in os.environ:
        with scratch.for_processes() as environment:
            sys.exit(subprocess.run([sys.executable, "-m", __spec__.name, *sys.argv[1:]], env=environment).returncode)
    name, *arguments = sys.argv[1:]
    logging.disable()
    with atheris.instrument_imports(include=["stream_server", "tests"]):
        target = load(name)

    def mutate(data: bytes, max_bytes: int, seed: int) -> bytes:
        random = Random(seed)
        changed = mutated_json(data, random) if random.random() < 0.5 else None
        if changed is not None and len(changed) <= max_bytes:
            return changed
        return bytes(atheris.Mutate(data, max_bytes))

    folder = Path(next(argument for argument in arguments if not argument.startswith("-")))
    if folder.is_dir() and "-merge=1" not in arguments:
        _put(target.seeds, folder)
    # libFuzzer starts itself again, by a line of shell, to find out which inputs are worth to be kept.
    program = f"{sys.executable} -m {__spec__.name} {name}"
    others = {"custom_mutator": mutate} if target.is_json else {}
    atheris.Setup([program, f"-max_len={target.max_bytes}", *arguments], target.run, **others)
    atheris.Fuzz()


def _put(inputs: tuple[bytes, ...], folder: Path) -> None:
    for data in inputs:
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main()
