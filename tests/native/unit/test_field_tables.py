"""`stream_put_array` treats arrays as the Python client does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stream_server.client_api.fields import Fields
from stream_server.messages.client import DTYPES, Block, FieldSpec
from tests.native.unit.probe import Probe, Word, extents, text, word, words
from tests.support.examples import examples

PROBE = "probe_fields"
SENT = ("<f8", "<f4", "|i1", "<i4", "|u1", "<c8", "|b1")
KEPT = ("", "", "<f4", "<f8", "<i2", "<f2")


@dataclass(frozen=True)
class Case:
    """A rank, what it declares, and the samples that it sends one after the other."""

    specs: tuple[FieldSpec, ...]
    rank: int
    num_ranks: int
    declarations: tuple[tuple[str, tuple[int, ...], tuple[int, ...] | None], ...]
    samples: tuple[Mapping[str, np.ndarray], ...]


@st.composite
def field_specs(draw: st.DrawFn, name: str) -> FieldSpec:
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=2)))
    return FieldSpec(name=name, shape=shape, dtype=draw(st.sampled_from(KEPT)), optional=draw(st.booleans()))


def shares(spec: FieldSpec, num_ranks: int) -> list[tuple[int, ...]]:
    """Shapes that a block may have, and some that it may not."""
    size, *others = spec.shape or (1,)
    even = [(size // num_ranks, *others), (-(-size // num_ranks), *others)] if spec.shape else []
    return [spec.shape, spec.shape, *even, *even, (0, *others), (*spec.shape, 1), (2, 2)]


@st.composite
def arrays(draw: st.DrawFn, spec: FieldSpec, num_ranks: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if draw(st.integers(0, 7)) == 0:
        shape = draw(st.sampled_from(shares(spec, num_ranks)))
    if draw(st.integers(0, 5)) == 0:
        dtype = draw(st.sampled_from(SENT))
    return (np.arange(int(np.prod(shape))) * 37 % 101).reshape(shape).astype(dtype)


@st.composite
def cases(draw: st.DrawFn, *, max_fields: int, unknown: bool) -> Case:
    specs = [
        draw(field_specs(name)) for name in ("temperature", "pressure", "energy")[: draw(st.integers(1, max_fields))]
    ]
    num_ranks = draw(st.integers(1, 3))
    declarations = []
    shapes = {spec.name: draw(st.sampled_from(shares(spec, num_ranks))) for spec in specs}
    dtypes = {spec.name: draw(st.sampled_from(SENT)) for spec in specs}
    for spec in specs:
        if draw(st.booleans()):
            offset = draw(st.none() | st.tuples(*(st.integers(-1 if size > 4 else 0, size - 1) for size in spec.shape)))
            declarations.append((spec.name, draw(st.sampled_from([spec.shape] * 5 + [(2,)])), offset))
    samples = []
    for _ in range(draw(st.integers(1, 3))):
        sent = [spec for spec in specs if draw(st.integers(0, 4)) > 0]
        sample = {it.name: draw(arrays(it, num_ranks, shapes[it.name], dtypes[it.name])) for it in sent}
        if unknown and draw(st.integers(0, 15)) == 0:
            sample["presure"] = np.zeros(1)
        samples.append(sample)
    return Case(tuple(specs), draw(st.integers(0, num_ranks - 1)), num_ranks, tuple(declarations), tuple(samples))


def is_lenient(case: Case) -> bool:
    """In C a rank to which nothing of a declared field falls need not put it in the first sample."""
    declared = {name for name, _, offset in case.declarations if offset is None}
    return any(spec.name in declared and spec.shape and spec.shape[0] < case.num_ranks for spec in case.specs)


def said(blocks: tuple[Block, ...], present: int, sent: list[np.ndarray]) -> list[str]:
    """How the probe tells what was taken."""
    left = list(sent)
    told: list[str] = ["ok", *words(present, len(blocks))]
    for i, block in enumerate(blocks):
        content = np.ascontiguousarray(left.pop(0)).astype(block.dtype).tobytes() if present >> i & 1 else b""
        shapes = [*extents(block.shape), *extents(block.offset), *extents(block.count)]
        told += words(block.field, DTYPES.index(block.dtype), *shapes, content)
    return told


def taken_in_python(fields: Fields, sample: Mapping[str, np.ndarray]) -> list[str]:
    try:
        if fields.blocks is None:
            fields.fix_blocks(sample)
        present, sent = fields.arrays(sample)
    except (TypeError, ValueError) as error:
        return ["error", word(str(error))]
    assert fields.blocks is not None
    return said(fields.blocks, present, sent)


def taken_in_c(probe: Probe, sample: Mapping[str, np.ndarray]) -> list[str]:
    for name, array in sample.items():
        code = DTYPES.index(array.dtype.str)
        answer = probe.ask("put_array", name, code, *extents(array.shape), array.tobytes())
        if answer[0] == "error":
            probe.ask("drop")
            return answer
    return probe.ask("take")


def begin(probe: Probe, case: Case) -> None:
    words: list[Word] = [case.rank, case.num_ranks, len(case.specs)]
    for spec in case.specs:
        words += [spec.name, *extents(spec.shape), DTYPES.index(spec.dtype), spec.optional]
    assert probe.ask("new", *words) == ["ok"]


def declared_in_python(fields: Fields, declaration: tuple[Any, ...]) -> list[str]:
    try:
        fields.declare(*declaration)
    except ValueError as error:
        return ["error", word(str(error))]
    return ["ok"]


def answers(probe: Probe, case: Case) -> list[tuple[list[str], list[str]]]:
    """The answers of Python and C to every step of a case."""
    fields = Fields(case.specs, rank=case.rank, num_ranks=case.num_ranks)
    begin(probe, case)
    pairs = []
    for name, shape, offset in case.declarations:
        answer = probe.ask("declare", name, 0, *extents(shape), *extents(offset), *extents(None))
        pairs.append((declared_in_python(fields, (name, shape, offset)), answer))
    for sample in case.samples:
        pairs.append((taken_in_python(fields, sample), taken_in_c(probe, sample)))
    return pairs


@settings(max_examples=examples(150))
@given(cases(max_fields=3, unknown=True))
def test_blocks_and_bytes_are_those_of_python(probe: Probe, case: Case) -> None:
    assume(not is_lenient(case))
    for expected, found in answers(probe, case):
        if expected[0] == "ok":
            assert found == expected
        else:
            assert found[0] == "error"


@settings(max_examples=examples(100))
@given(cases(max_fields=1, unknown=False))
def test_mistakes_are_told_in_the_words_of_python(probe: Probe, case: Case) -> None:
    assume(not is_lenient(case))
    for expected, found in answers(probe, case):
        if expected[0] == "error":
            assert in_c(text(expected[1])) == text(found[1])


def test_an_unknown_field_names_the_nearest(probe: Probe) -> None:
    specs = tuple(FieldSpec(name=name, shape=()) for name in ("pressure", "temperature"))
    begin(probe, Case(specs, 0, 1, (), ()))
    told = "the study has no field 'temprature', only 'pressure', 'temperature'; did you mean 'temperature'?"
    assert taken_in_c(probe, {"temprature": np.zeros(())}) == ["error", word(told)]


def test_an_unknown_field_that_is_like_none_is_not_taken_for_one(probe: Probe) -> None:
    specs = tuple(FieldSpec(name=name, shape=()) for name in ("pressure", "temperature"))
    begin(probe, Case(specs, 0, 1, (), ()))
    told = "the study has no field 'velocity', only 'pressure', 'temperature'"
    assert taken_in_c(probe, {"velocity": np.zeros(())}) == ["error", word(told)]


def in_c(sentence: str) -> str:
    """A message of the Python client in the words of the C client, whose calls differ."""
    for python, c in (
        ("pass offset= to declare_field", "declare the field with its offset"),
        ("is declared with an offset: its first", "is declared with an offset, but no count: its first"),
    ):
        sentence = sentence.replace(python, c)
    return sentence
