"""Cases: how simulations begin and end."""

from tests.native.conformance.case import SMALL, Case, steps

FILE = (
    '{{"study": "heat", "incarnation": 3, "host": "nowhere", "control": ["ipc:///nowhere"], '
    '"simulation": 17, "attempt": 1{}}}'
)

LIVES = (
    Case(
        name="abandoned",
        about="A simulation that is abandoned does not say End.",
        fields=(SMALL,),
        script=f"""
            connect 0 1
            {steps(2)}
            abandon
            ! received 2
        """,
    ),
    Case(
        name="invalidated",
        about="A simulation that is invalidated sends no more.",
        fields=(SMALL,),
        script=f"""
            connect 0 1
            {steps(1)}
            ! received 1
            invalidate diverged at step 1
            {steps(1, first=1)}
            finish
        """,
    ),
    Case(
        name="attaching",
        about="A client that nobody launched says which simulation it is, and what it simulates.",
        fields=(SMALL,),
        launched=False,
        script="""
            connect 0 1 simulation=5 viscosity:0.25 left:100
            id
            attempt
            parameter viscosity
            put u float64 4 0
            send 0
            finish
        """,
    ),
    Case(
        name="worker",
        about="A worker becomes one simulation after the other, until none is left.",
        fields=(SMALL,),
        launched=False,
        script="""
            work
            id
            put u float64 4 0
            send 0
            next
            id
            put u float64 4 1
            send 0
            put u float64 4 2
            send 1
            ! refuse hello NO_SIMULATION_LEFT none is left
            next
        """,
    ),
    Case(
        name="worker_ends",
        about="A worker that was launched as one simulation becomes no other.",
        fields=(SMALL,),
        script="""
            work
            id
            put u float64 4 0
            send 0
            next
        """,
    ),
    Case(
        name="stopped_at_first",
        about="A simulation that comes after the end of its study.",
        fields=(SMALL,),
        script=f"""
            ! over training converged
            connect 0 1
            stop_reason
            {steps(1)}
            finish
        """,
    ),
    Case(
        name="stopped_later",
        about="The study ends while a send waits for credit.",
        fields=(SMALL,),
        server={"credit": 1},
        script=f"""
            connect 0 1
            ! withhold
            {steps(1)}
            put u float64 4 1
            & send 1
            ! pinged
            ! stop training converged
            wait
            stop_reason
            {steps(1, first=2)}
            finish
        """,
    ),
    Case(
        name="connection_files",
        about="Connection files that are none.",
        own_words=True,
        files={
            "empty.json": "",
            "text.json": "study: heat",
            "cut.json": '{"study": "heat", "incarnation"',
            "list.json": "[1, 2, 3]",
            "missing.json": '{"study": "heat", "incarnation": 3, "host": "nowhere"}',
            "surplus.json": FILE.format(', "colour": "red"'),
            "control.json": FILE.replace('["ipc:///nowhere"]', "5").format(""),
            "security.json": FILE.format(', "security": "curve"'),
            "keys.json": FILE.format(', "security": {"server_public_key": "x"}'),
        },
        script="""
            connect 0 1 connection=-
            connect 0 1 connection=./absent.json
            connect 0 1 connection=./empty.json
            connect 0 1 connection=./text.json
            connect 0 1 connection=./cut.json
            connect 0 1 connection=./list.json
            connect 0 1 connection=./missing.json
            connect 0 1 connection=./surplus.json
            connect 0 1 connection=./control.json
            connect 0 1 connection=./security.json
            connect 0 1 connection=./keys.json
        """,
    ),
    Case(
        name="alone",
        about="With the connection none every call succeeds and does nothing.",
        script="""
            connect 0 1 connection=none
            id
            time_steps
            declare anything 3 - float64 3
            put anything float64 3 1
            send 12345
            invalidate no reason
            finish
        """,
    ),
    Case(
        name="connection_file_types",
        about="Connection files with values of wrong types.",
        own_words=True,
        files={
            f"{i}.json": FILE.replace(right, wrong).format("")
            for i, (right, wrong) in enumerate(
                [
                    ('"incarnation": 3', '"incarnation": "three"'),
                    ('"incarnation": 3', '"incarnation": 3.5'),
                    ('"study": "heat"', '"study": 5'),
                    ('"simulation": 17', '"simulation": true'),
                    ('"attempt": 1', '"attempt": -1'),
                    ('["ipc:///nowhere"]', '"ipc:///nowhere"'),
                    ('["ipc:///nowhere"]', "[]"),
                ]
            )
        },
        script="\n".join(f"connect 0 1 connection=./{i}.json" for i in range(7)),
    ),
)
