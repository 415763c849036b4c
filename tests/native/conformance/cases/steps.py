"""Cases: which steps go where, and which do not go at all."""

from stream_server.messages.client import FieldSpec, Routing, TimeSteps
from tests.native.conformance.case import SMALL, Case, steps

STEPS = (
    Case(
        name="labels",
        about="Steps 10, 15 ... 30 go to three server ranks in turn, by their indices.",
        fields=(SMALL,),
        num_ranks=3,
        time_steps=TimeSteps(num=5, first=10, every=5),
        script="""
            connect 0 1
            id
            attempt
            parameter viscosity
            time_steps
            put u float64 4 0
            send 10
            put u float64 4 1
            send 15
            put u float64 4 2
            send 20
            put u float64 4 3
            send 25
            put u float64 4 4
            send 30
            finish
        """,
    ),
    Case(
        name="by_simulations",
        about="All steps of a simulation go to the same server rank.",
        fields=(SMALL,),
        num_ranks=2,
        server={"routing": Routing.SIMULATIONS},
        script=f"""
            connect 0 1
            time_steps
            {steps(3)}
            finish
        """,
    ),
    Case(
        name="twice",
        about="A step that is sent twice counts once; the later put of a field counts.",
        fields=(SMALL,),
        script="""
            connect 0 1
            put u float64 4 1
            send 0
            put u float64 4 1
            put u float64 4 2
            send 0
            finish
        """,
    ),
    Case(
        name="known",
        about="What the server knows is not sent, but counts.",
        fields=(SMALL,),
        num_ranks=2,
        server={"known": {0: bytes([0b1010]), 1: b""}},
        script=f"""
            connect 0 1
            {steps(5)}
            finish
        """,
    ),
    Case(
        name="gathered",
        about="Small steps in quick succession.",
        fields=(FieldSpec(name="u", shape=(2,)),),
        num_ranks=2,
        server={"credit": 64},
        gathers=True,
        script=f"""
            connect 0 1
            {steps(24, count="2")}
            finish
        """,
    ),
    Case(
        name="nothing",
        about="A simulation that sends nothing says Open without blocks, and End.",
        fields=(SMALL,),
        num_ranks=2,
        script="""
            connect 0 1
            finish
        """,
    ),
    Case(
        name="mistakes",
        about="What is refused at the call, before it gets onto the wire; the simulation goes on.",
        fields=(
            FieldSpec(name="temperature", shape=(3, 4), dtype="<i4"),
            FieldSpec(name="pressure", shape=(2,), dtype="<f4"),
        ),
        time_steps=TimeSteps(num=10),
        script="""
            connect 0 1
            declare temprature 3,4 - - -
            declare temperature 4,3 - - -
            put temprature int32 3,4 1
            send 0
            put temperature int32 4,3 1
            put pressure float32 2 1
            send 0
            put temperature float64 3,4 1
            put pressure float32 2 1
            send 0
            put pressure float32 2 1
            send 0
            put temperature int32 3,4 1
            put pressure float32 2 1
            send 0
            put temperature int32 3,4 2
            put pressure float32 2 2
            send 10
            put temperature int32 3,4 2
            put pressure float64 3 2
            send 1
            put temperature int32 3,4 2
            send 1
            declare pressure 2 - - -
            put temperature int32 3,4 2
            put pressure float32 2 2
            send 1
            finish
        """,
    ),
)
