"""python -m tests.zoo NAME …: the same as `python -m tests.campaigns zoo NAME …`."""

import sys

from tests.campaigns import main

sys.exit(main(["zoo", *sys.argv[1:]]))
