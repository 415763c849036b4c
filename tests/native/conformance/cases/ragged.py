"""Cases: fields whose first extent differs from step to step."""

from stream_server.messages.client import FieldSpec
from tests.native.conformance.case import Case

X = FieldSpec(name="x", shape=(5, 3), dtype="<f4", ragged=True)
W = FieldSpec(name="w", shape=(9,), optional=True, ragged=True)
U = FieldSpec(name="u", shape=(2,))

RAGGED = (
    Case(
        name="ragged",
        about="Each step has as many rows as its bytes make, is a message of its own, and comes again as it was.",
        fields=(X, W, U),
        script="""
            connect 0 1
            put x float64 2,3 1
            put u float64 2 1
            put w float64 9 1
            send 0
            put x float32 0,3 2
            put u float64 2 2
            send 1
            put x float64 5,3 3
            put u float64 2 3
            put w float64 0 3
            send 2
            ! received 3
            ! die
            & finish
            ! restart 4 -
            wait
        """,
    ),
    Case(
        name="ragged_parts",
        about="The rows of a step above 4 MiB travel in parts, and an empty block has none.",
        fields=(FieldSpec(name="x", shape=(1000000, 3), ragged=True), FieldSpec(name="w", shape=(9,), ragged=True)),
        script="""
            connect 0 1
            put x float64 262144,3 1
            put w float64 0 1
            send 0
            put x float64 1,3 2
            put w float64 2 2
            send 1
            ! received 3
            finish
        """,
    ),
    Case(
        name="ragged_of_ranks",
        about="Rank 1 of 2 sends all of x, at first no row of it; rank 0 has the rest.",
        fields=(X, U),
        script="""
            connect 0 2
            declare u 2 0 float64 2
            put u float64 2 1
            send 0
            finish
            connect 1 2
            declare x 5,3 - - -
            put x float64 0,3 1
            send 0
            put x float64 4,3 2
            send 1
            finish
        """,
    ),
    Case(
        name="ragged_of_all_ranks",
        about="Each of 2 ranks sends rows of x, or none at a step.",
        fields=(X, U),
        script="""
            connect 0 2
            declare u 2 0 float64 2
            put x float64 0,3 1
            put u float64 2 1
            send 0
            put x float64 2,3 2
            put u float64 2 2
            send 1
            finish
            connect 1 2
            put x float64 3,3 3
            send 0
            put x float64 0,3 4
            send 1
            finish
        """,
    ),
    Case(
        name="ragged_mistakes",
        about="Too many rows, rows of another size, an offset, which rows do not have.",
        fields=(X, W, U),
        script="""
            connect 0 1
            declare x 5,3 0,0 - -
            put x float64 2,4 1
            put u float64 2 1
            send 0
            put x float64 6,3 1
            put u float64 2 1
            send 0
            put x float64 2,3 1
            put w float64 1 1
            put u float64 2 1
            send 0
            put x float64 6,3 2
            put u float64 2 2
            send 1
            put x float64 3 2
            put u float64 2 2
            send 1
            put x float64 1,3 2
            put w float64 1,1 2
            put u float64 2 2
            send 1
            put x float64 1,3 2
            put u float64 2 2
            send 1
            finish
        """,
    ),
)
