"""`{initial}` and `{initial:.3f}`: what stands for a value in the command and the templates of a simulation."""

import re
from collections.abc import Iterator, Mapping

from stream_server.config.problems import nearest, shown

PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)(?::([^{}]*))?\}")
IN_BRACES = re.compile(r"(?<!\$)\{\s*([A-Za-z_]\w*)[^{}]*\}")
MANY_DIGITS = re.compile(r"[0-9]{4}")
BUILT_IN: Mapping[str, int | str] = {"simulation": 0, "attempt": 0, "seed": 0, "study_dir": ""}

Examples = Mapping[str, float | int | str]


def placeholder_problems(text: str, examples: Examples, *, is_template: bool) -> Iterator[tuple[str, str]]:
    """What was found and what to write instead, for each placeholder of `text` that cannot be filled in.

    Braces that hold no name (JSON, a block of C) are text, and so is a shell's `${NAME}`. A template may
    also hold anything else in braces that does not look like a placeholder.

    Args:
        text: an element of the command, or a template.
        examples: a value for each placeholder there is.
        is_template: whether `text` is a file of its own language rather than an argument.
    """
    written = dict.fromkeys(match.group() for match in IN_BRACES.finditer(text))
    for each in written:
        match = PLACEHOLDER.fullmatch(each)
        if match is not None:
            problem = _problem_of(match[1], match[2], examples)
        else:
            named = IN_BRACES.fullmatch(each)
            assert named is not None
            problem = None if is_template else _problem_of_form(each, named[1], examples)
        if problem is not None:
            yield problem


def _problem_of(name: str, form: str | None, examples: Examples) -> tuple[str, str] | None:
    written = f"{{{name}}}" if form is None else f"{{{name}:{form}}}"
    if name not in examples:
        meant = nearest(name, examples)
        known = ", ".join(f"{{{example}}}" for example in examples)
        instead = f"Write {{{meant}}}, or add {name} to parameters.bounds" if meant else f"Write one of {known}"
        return f"{written} is neither a parameter nor built in", instead
    try:
        if MANY_DIGITS.search(form or ""):
            raise ValueError("it asks for thousands of characters")
        format(examples[name], form or "")
    except ValueError as error:
        example = {float: ".6g", int: "06d", str: "s"}[type(examples[name])]
        return f"{written} has a format that does not fit ({error})", f"Write {{{name}}}, or {{{name}:{example}}}"
    return None


def _problem_of_form(written: str, name: str, examples: Examples) -> tuple[str, str] | None:
    if name not in examples:
        return None
    return f"{shown(written)} would not be filled in", f"Write {{{name}}} or {{{name}:FORMAT}}"
