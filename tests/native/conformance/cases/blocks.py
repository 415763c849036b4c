"""Cases: the parts of parallel simulations."""

from stream_server.messages.client import FieldSpec, TimeSteps
from tests.native.conformance.case import Case, U, steps

PAGE = Case(
    name="page",
    about="The examples of docs/reference/protocol.md: Hello of rank 0, Open of rank 1, Invalidate.",
    fields=(U,),
    num_ranks=2,
    time_steps=TimeSteps(num=100),
    script=f"""
        connect 0 2
        declare u 6,4 0,0 float64 3,4
        {steps(2, count="3,4", first=1)}
        finish
        connect 1 2
        declare u 6,4 3,0 float64 3,4
        {steps(2, count="3,4", first=1)}
        ! received 4
        invalidate diverged
    """,
)

BLOCKS = (
    PAGE,
    Case(
        name="blocks",
        about="Three ranks whose blocks of a 6 by 4 field do not line up.",
        fields=(U,),
        script="""
            connect 0 3
            declare u 6,4 0,0 float64 6,2
            put u float64 6,2 1
            send 0
            finish
            connect 1 3
            declare u 6,4 0,2 float64 2,2
            put u float64 2,2 2
            send 0
            finish
            connect 2 3
            declare u 6,4 2,2 - -
            put u float64 4,2 3
            send 0
            finish
        """,
    ),
    Case(
        name="even_shares",
        about="Without an offset three ranks cut the first dimension as evenly as it goes, in rank order.",
        fields=(FieldSpec(name="u", shape=(7, 2)), FieldSpec(name="v", shape=(3, 2, 2), dtype="<f4")),
        script="""
            connect 0 3
            declare u 7,2 - - -
            put u float64 3,2 1
            put v float32 1,2,2 1
            send 0
            finish
            connect 1 3
            put u float64 2,2 2
            put v float32 1,2,2 2
            send 0
            finish
            connect 2 3
            declare u 7,2 - float64 -
            put u float64 2,2 3
            put v float32 1,2,2 3
            send 0
            finish
        """,
    ),
    Case(
        name="empty_blocks",
        about="Rank 1 of 3 has no part of u, and rank 2 no part of any field.",
        fields=(U, FieldSpec(name="v", shape=(4,))),
        script="""
            connect 0 3
            declare u 6,4 0,0 float64 6,4
            declare v 4 0 float64 2
            put u float64 6,4 1
            put v float64 2 1
            send 0
            finish
            connect 1 3
            declare v 4 2 float64 2
            put u float64 0,4 2
            put v float64 2 2
            send 0
            finish
            connect 2 3
            send 0
            finish
        """,
    ),
    Case(
        name="mistakes_of_ranks",
        about="What ranks of a parallel simulation may do wrong.",
        fields=(U, FieldSpec(name="v", shape=(4,), optional=True)),
        time_steps=TimeSteps(num=7, first=1, every=2),
        script="""
            connect 3 3
            connect 1 3
            declare u 6,4 4,0 - -
            put u float64 3,4 1
            send 1
            declare u 6,4 2,0 - -
            put u float64 2,4 1
            send 2
            put u float64 2,4 1
            send 1
            put u float64 2,4 1
            put v float64 4 1
            send 3
            put u float64 3,4 1
            send 3
            put u float64 2,4 2
            send 3
            finish
            connect 2 3
            put u float64 3,4 1
            send 1
            put u float64 2,4 1
            send 1
            finish
        """,
    ),
)
