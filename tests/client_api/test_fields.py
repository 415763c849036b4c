"""The user's arrays against the study's fields."""

import re
from typing import Any

import numpy as np
import pytest

from stream_server.client_api.fields import Fields
from stream_server.messages.client import FieldSpec

U = FieldSpec(name="temperature", shape=(6, 4))
KEPT = FieldSpec(name="temperature", shape=(6, 4), dtype="<f4")
EXTRA = FieldSpec(name="energy", shape=(), optional=True)


def with_fixed_blocks(*specs: FieldSpec, rank: int = 0, num_ranks: int = 1, **sample: object) -> Fields:
    fields = Fields(specs, rank=rank, num_ranks=num_ranks)
    fields.fix_blocks(sample)
    return fields


def test_a_serial_code_sends_the_whole_field() -> None:
    (block,) = with_fixed_blocks(U, temperature=np.zeros((6, 4))).blocks or ()
    assert (block.offset, block.count, block.dtype) == ((0, 0), (6, 4), "<f8")


@pytest.mark.parametrize("shape", [(4, 6), (24,), (6, 4, 1), (0, 4), ()])
def test_a_wrong_shape_is_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"'temperature' must have the shape \(6, 4\)"):
        with_fixed_blocks(U, temperature=np.zeros(shape))


def test_a_wrong_shape_is_told_at_later_steps_too() -> None:
    fields = with_fixed_blocks(U, temperature=np.zeros((6, 4)))
    with pytest.raises(ValueError, match=r"must have the shape \(6, 4\), but has \(4, 6\)"):
        fields.arrays({"temperature": np.zeros((4, 6))})


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="no field 'temprature', only 'temperature'; did you mean 'temperature'"):
        with_fixed_blocks(U, temprature=np.zeros((6, 4)))


def test_an_unknown_field_that_is_like_none_is_not_taken_for_one() -> None:
    with pytest.raises(ValueError, match=r"no field 'velocity', only 'temperature'$"):
        with_fixed_blocks(U, velocity=np.zeros((6, 4)))


@pytest.mark.parametrize("wrong", [1.5, 2.0, True, "1"])
def test_extents_and_offsets_are_integers(wrong: Any) -> None:
    fields = Fields([U], rank=1, num_ranks=2)
    with pytest.raises(TypeError, match=r"the shape of field 'temperature' must be an integer, but is"):
        fields.declare("temperature", (wrong, 4), None)
    with pytest.raises(TypeError, match=r"the offset of field 'temperature' must be an integer, but is"):
        fields.declare("temperature", (6, 4), (wrong, 0))


def test_an_unknown_field_is_told_at_later_steps_too() -> None:
    fields = with_fixed_blocks(U, temperature=np.zeros((6, 4)))
    with pytest.raises(ValueError, match="no field 'pressure'"):
        fields.arrays({"temperature": np.zeros((6, 4)), "pressure": 1.0})


@pytest.mark.parametrize("value", ["warm", object(), np.array(["a"]), np.array([None])])
def test_a_field_must_be_numeric(value: object) -> None:
    with pytest.raises(TypeError, match="'temperature' must be numeric"):
        with_fixed_blocks(U, temperature=value)


def test_long_doubles_are_refused_with_what_can_be_sent() -> None:
    with pytest.raises(TypeError, match=r"float16 to float64"):
        with_fixed_blocks(U, temperature=np.zeros((6, 4), np.longdouble))


def test_a_required_field_may_not_be_left_out() -> None:
    fields = with_fixed_blocks(U, EXTRA, temperature=np.zeros((6, 4)), energy=1.0)
    with pytest.raises(ValueError, match="'temperature' is missing"):
        fields.arrays({"energy": 1.0})
    with pytest.raises(ValueError, match="'temperature' is missing"):
        with_fixed_blocks(U, EXTRA, energy=1.0)


def test_an_optional_field_may_come_and_go() -> None:
    fields = with_fixed_blocks(U, EXTRA, temperature=np.zeros((6, 4)))
    assert fields.arrays({"temperature": np.zeros((6, 4))})[0] == 0b01
    assert fields.arrays({"temperature": np.zeros((6, 4)), "energy": 2})[0] == 0b11
    assert fields.arrays({"temperature": np.zeros((6, 4)), "energy": None})[0] == 0b01


def test_a_sample_of_optional_fields_only_needs_one_of_them() -> None:
    with pytest.raises(ValueError, match="at least one field"):
        with_fixed_blocks(EXTRA).arrays({})


def test_a_wider_type_than_the_study_keeps_is_narrowed_before_it_travels() -> None:
    (block,) = with_fixed_blocks(KEPT, temperature=np.zeros((6, 4))).blocks or ()
    assert block.dtype == "<f4"


WIDER = "give the field a wider dtype in study.json, or send one dtype throughout"


@pytest.mark.parametrize(
    ("kept", "values", "told"),
    [
        ("<f4", np.array([0.0, 1e300]), "float32, into which 1e+300 at (1,)"),
        ("<f4", np.array([np.inf, -1e39]), "float32, into which -1e+39 at (1,)"),
        ("<f2", np.array([1, 70000]), "float16, into which 70000 at (1,)"),
        ("<f2", np.array([65519.0, 65520.0]), "float16, into which 65520 at (1,)"),
        ("<c8", np.array([complex(np.inf, 1e39), 1]), "complex64, into which inf+1e+39j at (0,)"),
        ("<i4", np.array([1, 2**31]), "int32, into which 2147483648 at (1,)"),
        ("<i2", np.array([-(2**15) - 1, 0], np.int32), "int16, into which -32769 at (0,)"),
        ("|i1", np.array([0, 2**63], np.uint64), "int8, into which 9223372036854775808 at (1,)"),
        ("<i8", np.array([0, 2**63], np.uint64), "int64, into which 9223372036854775808 at (1,)"),
        ("|u1", np.array([255, 256], np.uint16), "uint8, into which 256 at (1,)"),
        ("<i4", [1, 2**31], "int32, into which 2147483648 at (1,)"),
    ],
)
def test_a_number_that_would_wrap_or_become_infinite_is_refused_by_its_place(kept: str, values: Any, told: str) -> None:
    fields = with_fixed_blocks(FieldSpec(name="u", shape=(2,), dtype=kept), u=np.zeros(2, np.asarray(values).dtype))
    with pytest.raises(ValueError, match=re.escape(f"field 'u' is sent as {told} does not fit: {WIDER}")):
        fields.arrays({"u": values})


@pytest.mark.parametrize(
    ("kept", "values"),
    [
        ("<f4", np.array([np.inf, np.nan, 3.4e38, 1e-300, 1 / 3])),
        ("<f2", np.array([65519.0, -np.inf])),
        ("<i4", np.array([2**31 - 1, -(2**31)])),
        ("<u4", np.array([2**32 - 1, 0], np.uint64)),
        ("<f4", np.array([2**63 - 1, -(2**24) - 1])),
        ("<c8", np.array([complex(np.inf, 1.0)])),
    ],
)
def test_floating_numbers_are_rounded_and_whole_ones_that_fit_are_kept(kept: str, values: np.ndarray) -> None:
    fields = with_fixed_blocks(FieldSpec(name="u", shape=values.shape, dtype=kept), u=values)
    _, (array,) = fields.arrays({"u": values})
    np.testing.assert_array_equal(array, values.astype(kept))


@pytest.mark.parametrize(
    "masked",
    [
        np.ma.array(np.zeros((6, 4)), mask=np.eye(6, 4)),
        np.ma.array(np.zeros((6, 4), np.float32), mask=True),
        [np.ma.array(np.zeros(4), mask=[0, 0, 0, row == 5]) for row in range(6)],
    ],
)
def test_masked_values_are_refused(masked: Any) -> None:
    fields = with_fixed_blocks(KEPT, temperature=np.zeros((6, 4)))
    for take in (fields.arrays, lambda sample: with_fixed_blocks(KEPT, **sample)):
        with pytest.raises(ValueError, match=r"'temperature' has masked values.*send array\.filled"):
            take({"temperature": masked})


def test_an_array_that_could_be_masked_and_is_not_travels() -> None:
    fields = with_fixed_blocks(KEPT, temperature=np.zeros((6, 4)))
    _, (array,) = fields.arrays({"temperature": np.ma.array(np.ones((6, 4)))})
    assert type(array) is np.ndarray
    assert array.dtype == np.float32


def test_a_narrower_type_than_the_study_keeps_travels_as_it_is() -> None:
    (block,) = with_fixed_blocks(KEPT, temperature=np.zeros((6, 4), np.int8)).blocks or ()
    assert block.dtype == "|i1"


def test_a_type_that_cannot_become_what_is_kept_is_refused() -> None:
    with pytest.raises(TypeError, match="kept as float32, which complex128 cannot become"):
        with_fixed_blocks(KEPT, temperature=np.zeros((6, 4), complex))


def test_the_type_of_the_first_step_may_not_be_lost_later() -> None:
    fields = with_fixed_blocks(U, temperature=np.zeros((6, 4), np.float32))
    with pytest.raises(TypeError, match="sent as float32, which float64 cannot become"):
        fields.arrays({"temperature": np.zeros((6, 4))})


def test_big_endian_arrays_travel_as_little_endian() -> None:
    (block,) = with_fixed_blocks(U, temperature=np.zeros((6, 4), ">i4")).blocks or ()
    assert block.dtype == "<i4"


@pytest.mark.parametrize(("rank", "offset", "count"), [(0, 0, 2), (1, 2, 2), (2, 4, 1), (3, 5, 1)])
def test_without_an_offset_the_ranks_cut_the_first_axis_in_order(rank: int, offset: int, count: int) -> None:
    fields = with_fixed_blocks(U, rank=rank, num_ranks=4, temperature=np.zeros((count, 4)))
    (block,) = fields.blocks or ()
    assert (block.offset, block.count) == ((offset, 0), (count, 4))


def test_an_uneven_cut_needs_an_offset() -> None:
    with pytest.raises(ValueError, match="pass offset= to declare_field"):
        with_fixed_blocks(U, rank=0, num_ranks=4, temperature=np.zeros((3, 4)))


def test_a_declared_block_lies_where_it_was_declared() -> None:
    fields = Fields([U], rank=1, num_ranks=2)
    fields.declare("temperature", (6, 4), (0, 3))
    (block,) = fields.fix_blocks({"temperature": np.zeros((6, 1))})
    assert (block.offset, block.count) == ((0, 3), (6, 1))


@pytest.mark.parametrize(("shape", "offset"), [((6, 5), (0, 0)), ((6,), (0,)), ((6, 4), (0,))])
def test_a_declaration_that_contradicts_the_study_is_told(shape: tuple[int, ...], offset: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="'temperature'"):
        Fields([U], rank=0, num_ranks=2).declare("temperature", shape, offset)


def test_a_block_that_reaches_out_of_the_field_is_told() -> None:
    fields = Fields([U], rank=1, num_ranks=2)
    fields.declare("temperature", (6, 4), (4, 0))
    with pytest.raises(ValueError, match="reaches out of"):
        fields.fix_blocks({"temperature": np.zeros((3, 4))})


def test_fields_are_declared_before_the_first_send() -> None:
    fields = with_fixed_blocks(U, rank=0, num_ranks=2, temperature=np.zeros((3, 4)))
    with pytest.raises(ValueError, match="before the first send"):
        fields.declare("temperature", (6, 4), None)


def test_a_rank_may_have_no_block_of_a_field() -> None:
    fields = with_fixed_blocks(U, EXTRA, rank=1, num_ranks=2, temperature=np.zeros((3, 4)))
    assert [block.field for block in fields.blocks or ()] == ["temperature"]
    with pytest.raises(ValueError, match="without declaring it"):
        fields.arrays({"temperature": np.zeros((3, 4)), "energy": 1.0})


def test_the_block_of_a_rank_may_be_empty() -> None:
    nothing = np.zeros((0, 4))
    fields = Fields([U], rank=1, num_ranks=2)
    fields.declare("temperature", (6, 4), (6, 0))
    assert fields.fix_blocks({"temperature": nothing}) == ()
    assert fields.arrays({"temperature": nothing}) == (0, [])
    with pytest.raises(ValueError, match="must have the shape"):
        with_fixed_blocks(U, temperature=nothing)


def test_a_failed_first_sample_leaves_the_next_one_free_to_be_the_first() -> None:
    fields = Fields([U], rank=0, num_ranks=1)
    with pytest.raises(ValueError, match="shape"):
        fields.fix_blocks({"temperature": np.zeros(3)})
    assert len(fields.fix_blocks({"temperature": np.zeros((6, 4))})) == 1


@pytest.mark.parametrize(("kept", "small"), [("<f2", 3e-9), ("<f4", -1e-60), ("<c8", 1e-60j)])
def test_a_field_of_which_nothing_but_zeros_is_left_is_told_once(
    kept: str, small: complex, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = with_fixed_blocks(FieldSpec(name="OH", shape=(3,), dtype=kept), OH=np.ones(3))
    for values in ([0, 0, 0], [1, small, 0], [small, 0, small], [small, small, small]):
        fields.arrays({"OH": np.array(values)})
    dtype, largest = np.dtype(kept), f"{abs(small):.6g}"
    assert capsys.readouterr().err == (
        f"stream-server: WARNING: field 'OH' is sent as {dtype}, in which all its values become 0 (the largest is "
        f"{largest}): give the field a wider dtype in study.json, or send it in another unit\n"
    )
