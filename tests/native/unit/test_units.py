"""The test programs in C."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

MESSAGES = Path(__file__).parents[1] / "fuzz" / "corpus" / "replies"


def test_fields_are_declared_and_put_by_the_rules(build: Callable[..., Path]) -> None:
    subprocess.run([build("fields_test")], check=True)


def test_what_a_server_may_read_is_not_written_over(build: Callable[..., Path]) -> None:
    subprocess.run([build("pool_test")], check=True)


def test_a_lack_of_memory_is_told_and_leaves_nothing_behind(build: Callable[..., Path]) -> None:
    program = build("memory_test", "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc")
    subprocess.run([program, MESSAGES], check=True)


def test_the_small_parts_do_what_they_say(build: Callable[..., Path], tmp_path: Path) -> None:
    locale = tmp_path / "de_DE.UTF-8"
    subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", locale], check=True)
    environment = dict(os.environ) | {"LOCPATH": str(tmp_path), "LOCALE": locale.name}
    subprocess.run([build("nouns_test")], env=environment, check=True)
