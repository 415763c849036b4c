"""Cases: servers that go away, come back or refuse."""

from stream_server.messages.client import Away, FieldSpec
from tests.native.conformance.case import HUGE, SMALL, Case, steps

SERVERS = (
    Case(
        name="restarted",
        about="The server comes back in incarnation 4 with step 1: the others are sent again, in their order.",
        fields=(SMALL,),
        num_ranks=2,
        server={"credit": 3, "if_server_away": Away.WAIT},
        script=f"""
            connect 0 1
            {steps(4)}
            ! received 4
            ! die
            & finish
            ! restart 4 1
            wait
        """,
    ),
    Case(
        name="restarted_with_other_ranks",
        about="The server comes back with three ranks instead of one while a send waits for credit.",
        fields=(SMALL, FieldSpec(name="v", shape=(2,), optional=True)),
        server={"credit": 2},
        script="""
            connect 0 1
            ! withhold
            put u float64 4 0
            send 0
            put u float64 4 1
            put v float64 2 1
            send 1
            put u float64 4 2
            & send 2
            ! pinged
            ! die
            ! restart 4 0 3
            wait
            finish
        """,
    ),
    Case(
        name="parts_again",
        about="A step in parts is sent again as it was.",
        fields=(FieldSpec(name="u", shape=HUGE), FieldSpec(name="v", shape=(3,))),
        script="""
            connect 0 1
            put u float64 3,262144 1
            put v float64 3 1
            send 0
            ! received 3
            ! die
            & finish
            ! restart 4 -
            wait
        """,
    ),
    Case(
        name="steps_lost",
        about="The server comes back without steps that were durable, and are not held any more.",
        fields=(SMALL,),
        server={"credit": 1, "makes_durable": True},
        script=f"""
            connect 0 1
            {steps(3)}
            ! received 3
            ! die
            & finish
            ! restart 4 2
            wait
        """,
    ),
    Case(
        name="unreachable_at_first",
        about="A server that never answers.",
        fields=(SMALL,),
        server={"silent": True},
        script="connect 0 1 timeout=0.25",
    ),
    Case(
        name="unreachable_later",
        about="A server that falls silent for ever, in a study that lets its simulations wait for 1 s.",
        fields=(SMALL,),
        server={"if_server_away": Away.WAIT, "wait_s": 1.0},
        script=f"""
            connect 0 1 timeout=1
            {steps(1)}
            ! received 1
            ! silent
            finish
        """,
    ),
    Case(
        name="refused_hello",
        about="An old attempt is fenced off at its first word.",
        fields=(SMALL,),
        script="""
            ! refuse hello STALE_ATTEMPT attempt 1 is not the current one
            connect 0 1
        """,
    ),
    Case(
        name="refused_open",
        about="An old attempt is fenced off when it opens, and every later call says so.",
        fields=(SMALL,),
        script=f"""
            connect 0 1
            ! refuse open STALE_ATTEMPT attempt 1 is not the current one
            {steps(2)}
            finish
        """,
    ),
    Case(
        name="refused_data",
        about="Refused data ends the simulation.",
        fields=(SMALL,),
        server={"credit": 1},
        script="""
            connect 0 1
            ! refuse data WRONG_STEP step 0 is not wanted
            put u float64 4 0
            ~ send 0
            put u float64 4 1
            ~ send 1
            finish
        """,
    ),
    Case(
        name="refused_after_restart",
        about="A new server does not want the old attempt.",
        fields=(SMALL,),
        script=f"""
            connect 0 1
            {steps(1)}
            ! received 1
            ! die
            ! refuse hello STALE_ATTEMPT attempt 1 is not the current one
            & finish
            ! restart 4 -
            wait
        """,
    ),
)
