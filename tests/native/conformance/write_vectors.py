"""Writes tests/vectors anew, from what the Python client does: `python -m tests.native.conformance.write_vectors`.

What changed is for a reviewer to compare with docs/reference/protocol.md.
"""

import sys

from tests.native.conformance import vectors
from tests.native.conformance.cases import CASES
from tests.native.conformance.run import run
from tests.native.conformance.script import Driver


def main() -> None:
    vectors.FOLDER.mkdir(exist_ok=True)
    with Driver([sys.executable, "-m", "tests.native.conformance.driver"]) as driver:
        for case in CASES:
            vectors.path(case).write_text(run(case, driver))
    for surplus in {*vectors.FOLDER.glob("*.txt")} - {vectors.path(case) for case in CASES}:
        surplus.unlink()


if __name__ == "__main__":
    main()
