"""docs/protocol.md shows each message with its bytes: they are the bytes that this code makes."""

import re
from pathlib import Path

import pytest

from stream_server.client_api import wire
from stream_server.client_api.layouts import DTYPES, KINDS
from stream_server.client_api.messages import (
    Ack,
    Away,
    Block,
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

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()

EXAMPLES: dict[str, Message] = {
    "Hello": Hello(study="heat", simulation=17, attempt=1, rank=0, num_ranks=2),
    "Welcome": Welcome(
        study="heat",
        simulation=17,
        attempt=1,
        epoch=3,
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
        epoch=3,
        rank=1,
        num_ranks=2,
        blocks=(Block(field="u", dtype="<f8", shape=(6, 4), offset=(3, 0), count=(3, 4)),),
    ),
    "Opened": Opened(epoch=3, credit=64, known=bytes([0b00000101])),
    "Data": Data(simulation=17, attempt=1, epoch=3, sequence=0, index=1, num_steps=2, present=1, checksum=0xCBF43926),
    "End": End(simulation=17, attempt=1, epoch=3, share=50, total=100),
    "Ping": Ping(),
    "Ack": Ack(received=25, durable=0, ended=True),
    "Invalidate": Invalidate(study="heat", simulation=17, attempt=1, reason="diverged"),
    "Invalidated": Invalidated(simulation=17),
    "Stop": Stop(text="over"),
    "Refusal": Refusal(reason=Reason.WRONG_STEP, text="no step 100", sequence=50),
}


def page_bytes(name: str) -> bytes:
    """The example of the section of this name: hexadecimal bytes, with what they mean behind a #."""
    match = re.search(rf"### {name} .*?```hex\n(.*?)```", PAGE, re.DOTALL)
    assert match, f"docs/protocol.md has no example of {name}"
    return bytes.fromhex(re.sub(r"#.*", "", match[1]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_message_has_the_bytes_on_the_page(name: str) -> None:
    assert page_bytes(name) == wire.encode(EXAMPLES[name])[0]
    assert wire.decode(page_bytes(name)) == EXAMPLES[name]


def test_every_message_has_an_example_and_its_kind_on_the_page() -> None:
    kinds = {cls.__name__: kind for cls, kind in KINDS.items()} | {"Data": wire.DATA_KIND}
    assert set(kinds) == set(EXAMPLES)
    for name, kind in kinds.items():
        assert f"### {name} (kind {kind})" in PAGE


def test_every_dtype_and_reason_is_on_the_page() -> None:
    for code, dtype in enumerate(DTYPES[1:], start=1):
        assert f"| {code} | `{dtype.removeprefix('|')}` |" in PAGE
    for reason in Reason:
        assert f"| {reason.value} | {reason.name} |" in PAGE
