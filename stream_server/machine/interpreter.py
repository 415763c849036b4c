"""The start of a Python process of ours: without the working folder on its import path, and in UTF-8 mode.

`python -m` and `python -c` take modules from there before those of the standard library: a file `copy.py` of a
stranger, in a folder that he may write to, or one of the user's that means something else. Names of files and texts are
UTF-8 in any locale, which cannot be switched on later.

Why: docs/decisions/0071-import-path.md
Why: docs/decisions/0088-environment-of-the-demo.md
"""

import os
import sys
from collections.abc import Mapping

VARIABLE = "PYTHONPATH"


def python_command(*words: str) -> list[str]:
    """The command line of this interpreter with these words; what multiprocessing starts there has its options, too."""
    return [sys.executable, "-P", "-X", "utf8", *words]


def python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with what is absolute in its PYTHONPATH: the rest leads elsewhere in each working folder.

    An empty entry is the working folder itself. `export PYTHONPATH=/opt/lib:$PYTHONPATH`, as in the module files of
    clusters, leaves one behind where the variable was not set.
    """
    others = {name: value for name, value in environment.items() if name != VARIABLE}
    folders = [folder for folder in environment.get(VARIABLE, "").split(os.pathsep) if os.path.isabs(folder)]
    return {**others, VARIABLE: os.pathsep.join(folders)} if folders else others
