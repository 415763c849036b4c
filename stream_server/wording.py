"""The wording of numbers in messages."""


def counted(num: int, noun: str) -> str:
    """A number with its noun, which is given in the singular: `1 rank`, `2 batches`, `1,000 samples`."""
    if num == 1:
        return f"1 {noun}"
    return f"{num:,} {noun}{'es' if noun.endswith('ch') else 's'}"
