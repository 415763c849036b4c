"""How many examples a property test draws."""

from hypothesis import settings

OF_FULL = 100


def examples(num: int) -> int:
    """`num` with `--hypothesis-profile=full`, and as much less in `make test` as its profile has less."""
    return num * settings.default.max_examples // OF_FULL
