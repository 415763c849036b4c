"""The golden vectors are messages of the protocol."""

import pytest

from stream_server.messages import wire
from stream_server.messages.client import Data, Hello, Open
from tests.messages.test_protocol_page import page_bytes
from tests.native.conformance import vectors
from tests.native.conformance.case import Case
from tests.native.conformance.cases import CASES
from tests.native.conformance.cases.blocks import PAGE
from tests.native.conformance.recording import by_place
from tests.support.payloads import check_payload


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_vector_decodes(case: Case) -> None:
    messages = vectors.read(vectors.path(case).read_text())
    for _, of_place in by_place(messages):
        opened = None
        for it in of_place:
            message = wire.decode(it.frames[0])
            if isinstance(message, Open):
                opened = message
            if isinstance(message, Data):
                assert opened is not None
                ragged = {field.name for field in case.fields if field.ragged and not field.is_static}
                blocks = opened.static_blocks if message.static else opened.blocks
                check_payload(message, blocks, it.frames[1:], ragged)
            else:
                assert wire.encode(message) == list(it.frames)
    speaks = any(isinstance(wire.decode(it.frames[0]), Hello) for it in messages)
    assert speaks == (case.name not in ("connection_files", "connection_file_types", "alone"))


@pytest.mark.parametrize("name", ["Hello", "Open", "Invalidate"])
def test_the_examples_of_the_protocol_page_are_among_them(name: str) -> None:
    assert (page_bytes(name),) in [it.frames for it in vectors.read(vectors.path(PAGE).read_text())]


def test_there_is_a_vector_for_each_case_and_no_other() -> None:
    assert {*vectors.FOLDER.iterdir()} == {vectors.path(case) for case in CASES}
