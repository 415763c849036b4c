"""Cases: fields that are sent once per simulation."""

from stream_server.messages.client import FieldSpec
from tests.native.conformance.case import HUGE, MESH, SMALL, Case, U, steps

NODES = FieldSpec(name="nodes", shape=(5, 2), dtype="<f4", per="simulation", ragged=True)
EDGES = FieldSpec(name="edges", shape=(9, 2), per="simulation", ragged=True)

STATICS = (
    Case(
        name="static",
        about="A mesh goes to each server rank before its first step, and to none that gets no step.",
        fields=(SMALL, MESH),
        num_ranks=3,
        script=f"""
            connect 0 1
            put mesh float32 6,2 7
            {steps(2)}
            finish
        """,
    ),
    Case(
        name="static_blocks",
        about="Three ranks have a block of the mesh each, the last one none of the steps: it sends its block at once.",
        fields=(U, MESH),
        script=f"""
            connect 0 3
            declare mesh 6,2 0,0 float64 2,2
            declare u 6,4 0,0 float64 3,4
            put mesh float64 2,2 1
            {steps(1, count="3,4")}
            finish
            connect 1 3
            declare mesh 6,2 - float64 2,2
            declare u 6,4 3,0 float64 3,4
            put mesh float64 2,2 2
            {steps(1, count="3,4")}
            finish
            connect 2 3
            put mesh float64 2,2 3
            send 0
            finish
        """,
    ),
    Case(
        name="static_parts",
        about="A field above 4 MiB travels in parts, as one below does; its type is what the study keeps.",
        fields=(
            SMALL,
            FieldSpec(name="mesh", shape=HUGE, per="simulation"),
            FieldSpec(name="area", shape=(), dtype="<f4", per="simulation"),
        ),
        script=f"""
            connect 0 1
            put area float64 . 2
            put mesh float64 3,262144 1
            {steps(1)}
            finish
        """,
    ),
    Case(
        name="static_again",
        about="A server that was started again is sent the mesh again, before the first step that it misses.",
        fields=(SMALL, MESH),
        script="""
            connect 0 1
            put mesh float64 6,2 7
            put u float64 4 0
            send 0
            ! received 2
            ! die
            & finish
            ! restart 4 -
            wait
        """,
    ),
    Case(
        name="static_known",
        about="A server rank that knows steps is sent the mesh at once, also where it gets no further step.",
        fields=(SMALL, MESH),
        num_ranks=3,
        server={"known": {0: b"", 1: bytes([0b1]), 2: bytes([0b10])}},
        script=f"""
            connect 0 1
            put mesh float32 6,2 7
            {steps(2)}
            finish
        """,
    ),
    Case(
        name="static_sizes",
        about="Each rank has rows of its own of a mesh whose size differs between simulations, one of them no nodes.",
        fields=(U, NODES, EDGES),
        script=f"""
            connect 0 3
            declare u 6,4 0,0 float64 2,4
            declare nodes 5,2 - - -
            put nodes float64 2,2 1
            put edges int32 1,2 1
            {steps(1, count="2,4")}
            finish
            connect 1 3
            declare u 6,4 2,0 float64 2,4
            put nodes float64 0,2 2
            put edges int32 4,2 2
            {steps(1, count="2,4")}
            finish
            connect 2 3
            declare u 6,4 4,0 float64 2,4
            put nodes float64 3,2 3
            {steps(1, count="2,4")}
            finish
        """,
    ),
    Case(
        name="static_size_mistakes",
        about="Too many rows, rows of another size, an offset, rows put twice. A mesh may have no edges.",
        fields=(SMALL, NODES, EDGES),
        script=f"""
            connect 0 1
            {steps(1)}
            declare nodes 5,2 0,0 - -
            put nodes float64 6,2 1
            {steps(1)}
            put nodes float64 3,3 1
            {steps(1)}
            put nodes float64 3,2 7
            put edges int32 0,2 1
            {steps(1)}
            put edges int32 2,2 1
            {steps(1, first=1)}
            {steps(1, first=1)}
            finish
        """,
    ),
    Case(
        name="static_mistakes",
        about="A mesh that is missing, of a wrong shape, or put twice. Mistakes leave the simulation as it was.",
        fields=(SMALL, MESH),
        script=f"""
            connect 0 1
            {steps(1)}
            put mesh float64 6,3 1
            {steps(1)}
            put mesh float64 6,2 7
            {steps(1)}
            put mesh float64 6,2 7
            {steps(1, first=1)}
            {steps(1, first=1)}
            finish
        """,
    ),
)
