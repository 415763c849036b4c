"""Cases: what is put, and in which bytes it travels."""

from stream_server.messages.client import FieldSpec
from tests.native.conformance.case import DTYPES, HUGE, SMALL, Case, steps

OF_DTYPES = tuple(
    Case(
        name=f"dtype_{dtype}",
        about=f"A field of {dtype}, kept as it is sent.",
        fields=(FieldSpec(name="u", shape=(3, 4)),),
        script=f"""
            connect 0 1
            put u {dtype} 3,4 1
            send 0
            put u {dtype} 3,4 2
            send 1
            finish
        """,
    )
    for dtype in DTYPES
)

VALUES = (
    *OF_DTYPES,
    Case(
        name="dimensions",
        about="Fields of no dimension up to four.",
        fields=tuple(FieldSpec(name=f"u{d}", shape=(2, 3, 4, 5)[4 - d :]) for d in range(5)),
        script="""
            connect 0 1
            put u0 float64 . 1
            put u1 float64 5 2
            put u2 float32 4,5 3
            put u3 int32 3,4,5 4
            put u4 int64 2,3,4,5 5
            send 0
            finish
        """,
    ),
    Case(
        name="declared",
        about="Fields that are declared with their type, as C codes do, give the same bytes.",
        fields=(FieldSpec(name="u", shape=(3, 4)), FieldSpec(name="energy", shape=())),
        script="""
            connect 0 1
            declare u 3,4 - float64 3,4
            declare energy . - float64 .
            put u float64 3,4 1
            put energy float64 . 2
            send 0
            put u float64 3,4 3 ghost
            put energy float64 . 4
            send 1
            finish
        """,
    ),
    Case(
        name="layouts",
        about="Blocks within larger arrays: with ghost layers, every second element, backwards.",
        fields=(FieldSpec(name="u", shape=(3, 4)), FieldSpec(name="w", shape=(2, 3, 4), dtype="<f4")),
        script="""
            connect 0 1
            put u float64 3,4 1 ghost
            put w float64 2,3,4 1 ghost
            send 0
            put u float64 3,4 2 spread
            put w float64 2,3,4 2 spread
            send 1
            put u float64 3,4 3 reversed
            put w float64 2,3,4 3 reversed
            send 2
            finish
        """,
    ),
    Case(
        name="conversion",
        about="The study's type travels if it is the smaller one, else the user's.",
        fields=(
            FieldSpec(name="half", shape=(4,), dtype="<f2"),
            FieldSpec(name="single", shape=(4,), dtype="<f4"),
            FieldSpec(name="double", shape=(4,), dtype="<f8"),
            FieldSpec(name="short", shape=(1,), dtype="<i2"),
            FieldSpec(name="long", shape=(4,), dtype="<i8"),
            FieldSpec(name="whole", shape=(4,), dtype="<f4"),
        ),
        script="""
            connect 0 1
            put half float64 4 1
            put single float64 4 2
            put double float32 4 3
            put short int64 1 29
            put long int32 4 5
            put whole int64 4 6
            send 0
            finish
        """,
    ),
    Case(
        name="misfits",
        about="An integer that would wrap is refused with its place and value; a smaller one travels.",
        fields=(FieldSpec(name="u", shape=(2, 2), dtype="<i4"), FieldSpec(name="v", shape=(), dtype="<i4")),
        script="""
            connect 0 1
            put u int64 2,2 29
            put v int64 . 29
            send 0
            put u int32 2,2 29
            put v int64 . 29
            send 0
            put u int32 2,2 30 spread
            put v int64 . 1
            send 1
            put u int64 2,2 1 reversed
            put v int64 . 29
            send 1
            finish
        """,
    ),
    Case(
        name="another_dtype",
        about="Without a type in study.json the first sample settles it, and later ones must fit into it.",
        fields=(SMALL,),
        script="""
            connect 0 1
            put u float32 4 1
            send 0
            put u float64 4 2
            send 1
            put u float32 4 2
            send 1
            finish
        """,
    ),
    Case(
        name="parts",
        about="A step above 4 MiB travels in parts, block by block; the small field behind it too.",
        fields=(FieldSpec(name="u", shape=HUGE), FieldSpec(name="v", shape=(3,))),
        script="""
            connect 0 1
            put u float64 3,262144 1
            put v float64 3 1
            send 0
            put u float64 3,262144 2
            put v float64 3 2
            send 1
            finish
        """,
    ),
    Case(
        name="parts_checked",
        about="The same over tcp, with checksums, and converted to the study's float32.",
        fields=(FieldSpec(name="u", shape=(2, *HUGE), dtype="<f4"), FieldSpec(name="v", shape=(3,))),
        transport="tcp",
        script="""
            connect 0 1
            put v float64 3 1
            put u float64 2,3,262144 1
            send 0
            finish
        """,
    ),
    Case(
        name="optional",
        about="Optional fields: from the second step on, left out, alone.",
        fields=(FieldSpec(name="u", shape=(4,), optional=True), FieldSpec(name="v", shape=(2,), optional=True)),
        script="""
            connect 0 1
            put u float64 4 1
            send 0
            put u float64 4 2
            put v float64 2 2
            send 1
            put v float64 2 3
            send 2
            finish
        """,
    ),
    Case(
        name="checksum",
        about="Over tcp without encryption each Data has its checksum.",
        fields=(SMALL,),
        transport="tcp",
        script=f"""
            connect 0 1
            {steps(3)}
            finish
        """,
    ),
    Case(
        name="encrypted",
        about="Over tcp with CURVE there are no checksums.",
        fields=(SMALL,),
        transport="curve",
        script=f"""
            connect 0 1
            {steps(3)}
            finish
        """,
    ),
)
