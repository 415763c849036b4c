"""The command line of `stream-server`, as far as it is read before any study."""

import pytest

from stream_server.server.commands.cli import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["study.json"], "unrecognized arguments: study.json: write --config study.json"),
        (["--config", "a.json", "b.json"], "unrecognized arguments: b.json"),
        (["--fesh"], "unrecognized arguments: --fesh"),
    ],
)
def test_what_the_command_line_does_not_know_is_told_with_what_was_meant(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(f"stream-server: error: {told}\n")
