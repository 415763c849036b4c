"""docs/reference/protocol.md shows each message as it is sent: so does this code."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from stream_server.messages import wire
from stream_server.messages.client import (
    DTYPES,
    Ack,
    Away,
    Block,
    Control,
    Data,
    End,
    FieldSpec,
    Hello,
    Invalidate,
    Invalidated,
    Message,
    Open,
    Opened,
    Ping,
    Reason,
    Refusal,
    Routing,
    Stop,
    TimeSteps,
    Welcome,
)

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "protocol.md").read_text()

EXAMPLES: dict[str, Message] = {
    "Hello": Hello(study="heat", simulation=17, attempt=1, rank=0, num_ranks=2),
    "Welcome": Welcome(
        study="heat",
        simulation=17,
        attempt=1,
        incarnation=3,
        endpoints=(("ipc:///tmp/s/0", "tcp://n1:5000"), ("tcp://n2:5000",)),
        parameters={"left": 100.0},
        time_steps=TimeSteps(num=100),
        fields=(FieldSpec(name="u", shape=(6, 4), dtype="<f4"),),
        routing=Routing.STEPS,
        window_bytes=2**26,
        if_server_away=Away.WAIT,
        wait_s=600.0,
    ),
    "Open": Open(
        study="heat",
        simulation=17,
        attempt=1,
        incarnation=3,
        rank=1,
        num_ranks=2,
        blocks=(Block(field="u", dtype="<f8", shape=(6, 4), offset=(3, 0), count=(3, 4)),),
    ),
    "Opened": Opened(incarnation=3, credit=64, known="05"),
    "Data": Data(
        simulation=17, attempt=1, incarnation=3, sequence=0, index=1, num_steps=2, present=1, checksum=0xCBF43926
    ),
    "End": End(simulation=17, attempt=1, incarnation=3, share=50, total=100),
    "Ping": Ping(),
    "Ack": Ack(received=25, durable=0, ended=True),
    "Invalidate": Invalidate(study="heat", simulation=17, attempt=1, reason="diverged"),
    "Invalidated": Invalidated(simulation=17),
    "Stop": Stop(text="over"),
    "Refusal": Refusal(reason=Reason.WRONG_STEP, text="no step 100", sequence=50),
}


def page_bytes(name: str) -> bytes:
    """The example of the section of this name: JSON, or hexadecimal bytes with what they mean behind a #."""
    match = re.search(rf"### {name}( \(kind \d\))?\n.*?```(json|hex)\n(.*?)```", PAGE, re.DOTALL)
    assert match, f"docs/reference/protocol.md has no example of {name}"
    if match[2] == "json":
        return json.dumps(json.loads(match[3]), separators=(",", ":")).encode()
    return bytes.fromhex(re.sub(r"#.*", "", match[3]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_message_is_what_is_sent(name: str) -> None:
    assert page_bytes(name) == wire.encode(EXAMPLES[name])[0]
    assert wire.decode(page_bytes(name)) == EXAMPLES[name]


def test_every_message_has_an_example_with_all_its_keys_on_the_page() -> None:
    assert {cls.__name__ for cls in get_args(Message)} == set(EXAMPLES)
    assert f"### Data (kind {wire.DATA_KIND})" in PAGE
    assert f"### Ack (kind {wire.ACK_KIND})" in PAGE
    for cls in get_args(Control):
        section = PAGE.split(f"\n### {cls.__name__}\n")[1].split("\n### ")[0]
        for name in cls.__struct_fields__:
            assert name == "protocol" or f"| `{name}` |" in section


def test_every_dtype_and_reason_is_on_the_page() -> None:
    for dtype in DTYPES[1:]:
        assert f"| `{dtype.replace('|', chr(92) + '|')}` |" in PAGE
    for reason in Reason:
        assert f"| {reason.name} |" in PAGE
