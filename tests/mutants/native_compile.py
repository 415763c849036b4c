"""Stands for gcc while mutants of the C client are tried: an object of the client is compiled once for its content."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = "STREAM_SERVER_MUTANTS_OBJECTS"
GCC = "STREAM_SERVER_MUTANTS_GCC"


def put_on_path(folder: Path) -> None:
    """Let this process and its children call it by `gcc`; `folder` takes the objects, in `objects`."""
    gcc = shutil.which("gcc")
    assert gcc is not None
    os.environ.update({GCC: gcc, CACHE: str(folder / "objects")})
    program = folder / "programs" / "gcc"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {__file__} "$@"\n')
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def main(words: list[str]) -> int:
    """Compile as these words say."""
    gcc = os.environ[GCC]
    sources = [Path(word) for word in words if word.endswith(".c")]
    natives = [it for it in sources if it.parent.match("native/src")]
    if "-c" not in words or not natives:
        return subprocess.run([gcc, *words]).returncode
    # A warning catches no bug, only a test does.
    options = [word for word in words if not word.endswith(".c") and word not in ("-c", "-Werror")]
    headers = b"".join(it.read_bytes() for it in sorted(natives[0].parents[1].rglob("*.h")))
    for source in sources:
        named = [source.name, *(word for word in options if not word.startswith("-I"))]
        known_by = "\0".join(named).encode() + headers + source.read_bytes()
        kept = Path(os.environ[CACHE]) / f"{hashlib.sha256(known_by).hexdigest()}.o"
        made = Path(f"{source.stem}.o")
        if kept.exists():
            shutil.copy(kept, made)
        elif code := subprocess.run([gcc, *options, "-c", str(source), "-o", str(made)]).returncode:
            return code
        else:
            shutil.copy(made, kept)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
