"""One run of the solver, as the study sees it, whether its server is there or not."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from threading import Lock
from types import TracebackType
from typing import Any, SupportsIndex

from stream_server.client_api.fields import Fields, integer, no_such
from stream_server.client_api.session import Session
from stream_server.errors import SimulationError, StepsLost, Unreachable
from stream_server.failpoints import failpoint
from stream_server.messages.client import MAX_UNKNOWN_STEPS, Away, FieldSpec, TimeSteps


class ServerState(Enum):
    """State of the server for a simulation that may go on without one.

    AWAY: it said nothing for too long, and may be started again. LOST: it misses what is not retained any more.
    """

    THERE = auto()
    AWAY = auto()
    LOST = auto()


class StudyParameters(dict[str, float]):
    """The parameters of a simulation in a study, by name.

    A program that reads one that the study does not have computes the same for all simulations. `get` of such a name
    says so on stderr, once, and gives the default.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__(values)
        self._warned: set[str] = set()

    def __missing__(self, name: str) -> float:
        raise KeyError(no_such("parameter", name, self))

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a parameter, or `default` if the study has none of this name."""
        if self and name not in self and name not in self._warned:
            self._warned.add(name)
            text = no_such("parameter", name, self)
            text += "" if text.endswith("?") else "."
            print(f"stream-server: WARNING: {text} {default!r} is used", file=sys.stderr)
        return super().get(name, default)


class Simulation:
    """One run of the solver. Made by `connect`; for one thread at a time of the process that connected.

    In a `with` block, leaving normally finishes the simulation, and leaving by an exception leaves it
    unfinished: the study then starts a new attempt, unless all its time steps have arrived.

    Attributes:
        id: the study's number of this simulation.
        parameters: what to simulate, by name.
        time_steps: the labels of the steps that the study expects; None if it takes them as they come.
        fields: what the study keeps of a step, by name, each with `shape`, `optional`, and `is_static` if it is sent
            once per simulation; empty without a study.
    """

    def __init__(
        self,
        session: Session | None,
        *,
        id: int,
        attempt: int,
        parameters: dict[str, float],
        time_steps: TimeSteps | None = None,
        wanted: bool = True,
        stop_reason: str = "",
    ) -> None:
        """Make one of a study or, without a `session`, one alone: calls do nothing, and `send` returns `wanted`."""
        self.id = id
        self.parameters = parameters
        self.time_steps: range | None = None
        if time_steps is not None and time_steps.num is not None:
            stop = time_steps.first + time_steps.num * time_steps.every
            self.time_steps = range(time_steps.first, stop, time_steps.every)
        self._labels = time_steps
        self._session = session
        self.fields: dict[str, FieldSpec] = {}
        self._fields: Fields | None = None
        if session is not None:
            self.fields = {spec.name: spec for spec in session.welcome.fields}
            self._fields = Fields(session.welcome.fields, rank=session.hello.rank, num_ranks=session.hello.num_ranks)
        self._attempt = attempt
        self._wanted = wanted
        self._stop_reason = stop_reason
        self._server = ServerState.THERE
        self._failure: SimulationError | None = None
        self._call_lock = Lock()
        self._pid = os.getpid()
        self._finished = False

    @property
    def attempt(self) -> int:
        """Number of earlier starts. A new server may renumber one that attached by itself."""
        return self._attempt if self._session is None else self._session.welcome.attempt

    @property
    def stop_reason(self) -> str:
        """Reason why the study has ended, such as "training converged: …"; empty before, or if unknown."""
        return self._stop_reason if self._session is None else self._session.stop_reason

    def declare_field(self, name: str, *, shape: Sequence[int], offset: Sequence[int] | None = None) -> None:
        """Say that this rank sends a block of the field, whose global shape is `shape`.

        For parallel codes, before the first `send`. `offset` is where the block begins, counted from 0 in
        each dimension; its extent is that of the first array. Without `offset` the ranks cut the first
        axis as evenly as it goes, in rank order, the first ones taking one more if it does not divide.

        Raises:
            TypeError: a number of `shape` or `offset` is no integer.
            ValueError: the study has no such field, or one of another shape.
        """
        if self._fields is not None:
            self._fields.declare(name, shape, offset)

    def send_static(self, /, **fields: Any) -> None:
        """Send fields that are the same in all time steps, once: a mesh, a coefficient, a geometry.

        These are the fields with `"per": "simulation"` in study.json. All of them must be given before the first
        `send`, in one call or several, or to `connect`. In a parallel simulation each rank gives its block, as to
        `send`; a rank that gives nothing has no part of the field. Of a field whose size differs between simulations
        these are rows, as many as there are, which the server puts one after the other in the order of the ranks. The
        arrays are copied and may change at once. They go to the server with the first step, and again to a server that
        was started again.

        Raises:
            TypeError: a field is not numeric, or of a type that cannot become what the study keeps.
            ValueError: a field is unknown, of a wrong shape, belongs to each time step, or was given before; or a
                step was sent already.
        """
        with self._call():
            if self._fields is not None:
                self._fields.add_statics(fields)

    def send(self, time_step: SupportsIndex, /, **fields: Any) -> bool:
        """Send one sample: all fields of one time step, or this rank's blocks of them.

        The arrays are copied and may change at once. Blocks while the server has no room for more.

        Returns:
            False if the study has ended and wants nothing more, from then on for ever. Parallel codes learn
            this at different steps on different ranks, and must agree before they leave their loop.

        Raises:
            TypeError: the time step is a bool or no integer, or a field cannot be read, is not numeric, or of a type
                that cannot become what the study keeps.
            ValueError: a field is unknown, missing or of a wrong shape, or the study has no such time step.
            Refused: the server refused this sample or an earlier one.
            StepsLost: the server went back to a checkpoint, and misses steps that are not retained any more.
            Unreachable: the server stayed away for longer than the study lets a simulation wait.
            SimulationError: another thread is in a call, or this process was forked from the one that connected.
        """
        with self._call():
            if self._finished:
                raise ValueError(f"simulation {self.id} is finished: nothing can be sent any more")
            index = self._index(time_step)
            if self._session is None or self._fields is None:
                return self._wanted
            self._send(self._session, self._fields, index, fields)
            if self._session.has_stopped:
                self._leave()
                return False
            return True

    def is_durable(self, time_step: SupportsIndex) -> bool:
        """Whether a checkpoint of the study has this step, so that no restart asks for it again.

        Until then a copy of one's own, such as a file, may be all that is left of it once this process has died. The
        answer is what the server has said so far; False of a step that the client had to forget (`client.window`).

        Raises:
            TypeError, ValueError: as for `send`.
            Refused, SimulationError: as for `send`.
        """
        with self._call():
            return self._session is not None and self._session.is_durable(self._index(time_step))

    def invalidate(self, reason: str) -> None:
        """Withdraw what was sent, because the run is not worth learning from; it is not tried again.

        To be called before the last time step is sent. Afterwards `send` returns False and `finish` does nothing.

        Raises:
            Refused: all time steps have arrived, so that the simulation is finished already.
            Unreachable, SimulationError: as for `send`.
        """
        with self._call():
            if self._session is None:
                self._wanted = False
                return
            try:
                self._session.invalidate(reason)
            except Unreachable:
                if not self._may_go_on_without(self._session):
                    raise
                self._say_that_it_ends_without(self._session)
            self._leave()

    def finish(self) -> None:
        """Wait until all that was sent has arrived, and leave. A second call does nothing.

        Raises:
            Refused, StepsLost, Unreachable, SimulationError: as for `send`.
        """
        with self._call():
            if self._finished:
                return
            if self._session is not None:
                try:
                    self._finish(self._session)
                finally:
                    self._close()
            self._finished = True

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        elif self._session is not None:
            with contextlib.suppress(SimulationError), self._call():
                self._session.abandon()
                self._close()

    def _send(self, session: Session, fields: Fields, index: int, sample: Mapping[str, Any]) -> None:
        failpoint("client.before_send")
        if fields.blocks is None:
            session.static_blocks, session.statics = fields.fix_static_blocks()
            session.blocks = fields.fix_blocks(sample)
        present, arrays = fields.arrays(sample)
        if self._server is ServerState.THERE or self._may_resume(session):
            try:
                session.send(index, present, arrays)
                self._server = ServerState.THERE
            except (Unreachable, StepsLost) as error:
                self._go_on_without(session, error)
        if self._server is ServerState.AWAY:
            session.keep(index, present, arrays)

    def _finish(self, session: Session) -> None:
        if self._server is ServerState.THERE or self._may_resume(session, look_now=True):
            try:
                session.finish()
                return
            except (Unreachable, StepsLost) as error:
                self._go_on_without(session, error)
        self._say_that_it_ends_without(session)

    def _may_resume(self, session: Session, *, look_now: bool = False) -> bool:
        return self._server is ServerState.AWAY and session.may_resume(look_now=look_now)

    def _may_go_on_without(self, session: Session) -> bool:
        return session.welcome.if_server_away is Away.CONTINUE

    def _go_on_without(self, session: Session, error: Unreachable | StepsLost) -> None:
        """The server is away: end the simulation, or let it run on, as the study says."""
        if not self._may_go_on_without(session):
            raise error
        self._server = ServerState.LOST if isinstance(error, StepsLost) else ServerState.AWAY
        session.interrupt()

    def _say_that_it_ends_without(self, session: Session) -> None:
        print(
            f"{session.who}: the server of study {session.welcome.study} is away. The simulation ends without it; "
            "a new attempt will produce what is missing.",
            file=sys.stderr,
        )

    def _index(self, time_step: SupportsIndex) -> int:
        label = integer(time_step, "the time step", "count the steps, and send the time as a field if it is needed")
        labels = self._labels
        if labels is None:
            return label
        index, remainder = divmod(label - labels.first, labels.every)
        num = labels.num if labels.num is not None else MAX_UNKNOWN_STEPS
        if remainder or not 0 <= index < num:
            last = labels.first + (num - 1) * labels.every
            every = f", every {labels.every}" if labels.every > 1 else ""
            raise ValueError(f"the study has the time steps {labels.first} to {last}{every}, but not {label}")
        return index

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """A call of the user's. It and all later ones fail if another is under way; none is for a forked process."""
        if os.getpid() != self._pid:
            raise SimulationError(
                f"simulation {self.id}: a forked process cannot send by the connection of its parent: return the "
                "arrays to the process that called connect, and send them there"
            )
        if not self._call_lock.acquire(blocking=False):
            self._failure = SimulationError(
                f"simulation {self.id} was used by two threads at once: call send and finish in one thread, or hold "
                "a lock of yours around them"
            )
            raise self._failure
        try:
            if self._failure is not None:
                raise self._failure
            yield
        except SimulationError as error:
            self._failure = error
            self._close()
            raise
        finally:
            self._call_lock.release()

    def _close(self) -> None:
        if self._session is not None and self._fields is not None:
            self._session.close()
            self._fields.close()

    def _leave(self) -> None:
        self._close()
        self._attempt, self._stop_reason = self.attempt, self.stop_reason
        self._session, self._labels, self._wanted = None, None, False
