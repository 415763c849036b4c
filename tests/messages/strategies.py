"""Hypothesis strategies: any message of the protocol, and any Data."""

from hypothesis import strategies as st

from stream_server.messages.client import (
    DTYPES,
    MAX_CLIENT_RANKS,
    MAX_PART_BYTES,
    PER_SIMULATION,
    PER_STEP,
    Ack,
    Away,
    Block,
    Data,
    End,
    FieldSpec,
    Hello,
    Invalidate,
    Invalidated,
    Message,
    Open,
    Opened,
    Ping,
    Reason,
    Refusal,
    Routing,
    Stop,
    TimeSteps,
    Welcome,
)

u32 = st.integers(0, 2**32 - 1)
counts = st.integers(0, 2**63 - 1)
characters = st.characters(codec="utf-8", exclude_characters="\0")
texts = st.text(characters, max_size=20)
names = st.text(characters, min_size=1, max_size=8)
parameters = st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False), max_size=4)
shapes = st.lists(st.integers(1, 100), max_size=8).map(tuple)


@st.composite
def ranks(draw: st.DrawFn) -> dict[str, int]:
    num_ranks = draw(st.integers(1, MAX_CLIENT_RANKS))
    return {"rank": draw(st.integers(0, num_ranks - 1)), "num_ranks": num_ranks}


@st.composite
def blocks(draw: st.DrawFn, name: str) -> Block:
    shape = draw(shapes)
    offset = tuple(draw(st.integers(0, size - 1)) for size in shape)
    count = tuple(draw(st.integers(1, size - start)) for size, start in zip(shape, offset, strict=True))
    return Block(field=name, dtype=draw(st.sampled_from(DTYPES[1:])), shape=shape, offset=offset, count=count)


@st.composite
def fields(draw: st.DrawFn, name: str) -> FieldSpec:
    dtype = draw(st.sampled_from(DTYPES))
    per = draw(st.sampled_from((PER_STEP, PER_SIMULATION)))
    return FieldSpec(name=name, shape=draw(shapes), dtype=dtype, optional=draw(st.booleans()), per=per)


@st.composite
def several(draw: st.DrawFn, what) -> tuple:  # type: ignore[no-untyped-def, type-arg]
    return tuple(draw(what(name)) for name in draw(st.lists(names, max_size=4, unique=True)))


@st.composite
def hellos(draw: st.DrawFn) -> Hello:
    return Hello(
        study=draw(texts),
        simulation=draw(st.none() | counts),
        attempt=draw(u32),
        parameters=draw(st.none() | parameters),
        **draw(ranks()),
    )


@st.composite
def opens(draw: st.DrawFn) -> Open:
    of_all = draw(several(blocks))
    num_static = draw(st.integers(0, len(of_all)))
    return Open(
        study=draw(texts),
        simulation=draw(counts),
        attempt=draw(u32),
        incarnation=draw(u32),
        blocks=of_all[num_static:],
        static_blocks=of_all[:num_static],
        **draw(ranks()),
    )


@st.composite
def whole_data(draw: st.DrawFn) -> Data:
    return Data(
        simulation=draw(counts),
        attempt=draw(u32),
        incarnation=draw(u32),
        sequence=draw(counts),
        index=draw(counts),
        num_steps=draw(st.integers(1, 2**32 - 1)),
        present=draw(st.integers(1, 2**64 - 1)),
        checksum=draw(st.none() | u32),
    )


@st.composite
def partial_data(draw: st.DrawFn) -> Data:
    field, static = draw(st.integers(0, 63)), draw(st.booleans())
    return Data(
        simulation=draw(counts),
        attempt=draw(u32),
        incarnation=draw(u32),
        sequence=draw(counts),
        index=0 if static else draw(counts),
        num_steps=1,
        present=draw(st.integers(0, 2**64 - 1)) | 1 << field,
        field=field,
        offset=draw(st.integers(0, 2**40)) * MAX_PART_BYTES,
        last=draw(st.booleans()),
        static=static,
        checksum=draw(st.none() | u32),
    )


time_steps = st.builds(
    TimeSteps,
    num=st.none() | st.integers(1, 2**31),
    first=st.integers(-(2**63), 2**61),
    every=st.integers(1, 2**31),
)
welcomes = st.builds(
    Welcome,
    study=texts,
    simulation=counts,
    attempt=u32,
    incarnation=u32,
    endpoints=st.lists(st.lists(texts, min_size=1, max_size=3).map(tuple), min_size=1, max_size=4).map(tuple),
    parameters=parameters,
    time_steps=time_steps,
    fields=several(fields),
    routing=st.sampled_from(Routing),
    window_bytes=counts,
    if_server_away=st.sampled_from(Away),
    wait_s=st.floats(min_value=0, allow_nan=False, allow_infinity=False),
)
messages: st.SearchStrategy[Message] = st.one_of(
    hellos(),
    welcomes,
    opens(),
    st.builds(Opened, incarnation=u32, credit=st.integers(1, 2**32 - 1), known=st.binary(max_size=40).map(bytes.hex)),
    whole_data(),
    partial_data(),
    st.builds(End, simulation=counts, attempt=u32, incarnation=u32, share=counts, total=counts),
    st.just(Ping()),
    st.builds(Ack, received=counts, durable=counts, ended=st.booleans(), stop=st.booleans()),
    st.builds(Invalidate, study=texts, simulation=counts, attempt=u32, reason=texts),
    st.builds(Invalidated, simulation=counts),
    st.builds(Stop, text=texts),
    st.builds(Refusal, reason=st.sampled_from(Reason), text=texts, sequence=st.none() | counts),
)
