"""Every error of the package, in one tree.

StreamServerError
├── ConfigError             study.json or the command line: the user can fix it           exit 2
│   └── DamagedRecord       recorded samples are not as they were written                 exit 2
├── NotRunning              there is no such run, or nothing of it runs                   exit 1
├── UserCodeError           a method of the user's server class raised                    exit 3
├── TooManyFailures         the simulations cannot be made to run                         exit 4
├── NonFiniteData           a sample has NaN or infinity, and the study says to stop      exit 4
├── NotBalanced             an accepted sample is unaccounted for                         exit 5
├── SamplesNotWritten       the samples of a run without training cannot be written       exit 5
├── ModelNotWritten         the trained model is in the last checkpoint alone              exit 9
├── DamagedCheckpoint       what was read is not what was saved                           exit 6
│   └── OtherFormat         a checkpoint of another release
├── NoUsableCheckpoint      there are checkpoints, but none that can be continued         exit 6
├── RankLost                a rank, thread or node was lost, or refused what it needs      exit 7
├── StaleIncarnation        a newer start of the server has taken over                    exit 7
├── RanksDiverged           ranks that must hold the same weights do not                  exit 8
├── InternalError           an unexpected exception in code of this package               exit 70
├── MalformedMessage        bytes that are no message of the protocol
│   └── WrongProtocol       a message of another version of the protocol
├── SimulationError         raised by `connect` or `send` in a simulation
│   ├── Refused             the server refused a message; the text says why
│   ├── StepsLost           a restarted server lacks steps that the client no longer holds
│   └── Unreachable         the server did not answer in time
├── Closed                  the buffer is closed and empty: the stream has ended
└── ProducerFailed          the buffer was closed by an error, which is the cause

A study that is finished, or was stopped early, exits with 0; the other codes are below. Which error an exception of
any kind stands for is decided in `server/study/failure.py`, the code of a stop in `server/study/closing.py`, and what
follows from the code of a server in `launcher/supervision/server_restart.py`.
"""

from typing import Self

EXIT_SAVED = 75
"""A study that is saved and not over: the same command continues it."""

EXIT_FORCED = 130
"""A command that was interrupted, with a second signal or before it could save anything."""


class StreamServerError(Exception):
    """The root of the tree; `exit_code` is what a command that ends with this error returns.

    An error without a code of its own is caught where it belongs: one that ends a command is a defect of this package,
    like any unexpected exception (70 is EX_SOFTWARE of sysexits.h, as 75 is EX_TEMPFAIL).
    """

    exit_code = 70


class ConfigError(StreamServerError):
    """Something in study.json, the command line or the user's files that the user can fix."""

    exit_code = 2


class DamagedRecord(ConfigError):
    """Recorded samples are not as they were written: bytes or files of the record are damaged or lost."""


class NotRunning(StreamServerError):
    """An operator asked for a run that is not there, or for something that only a running study can do."""

    exit_code = 1


class UserCodeError(StreamServerError):
    """A method of the user's server class raised; the original exception is the cause."""

    exit_code = 3


class TooManyFailures(StreamServerError):
    """More simulations failed than the study allows, or none gets as far as its first sample."""

    exit_code = 4


class NonFiniteData(StreamServerError):
    """A simulation sent a sample with NaN or infinity, and `training.nonfinite` is "stop"."""

    exit_code = 4


class NotBalanced(StreamServerError):
    """The closing account does not add up."""

    exit_code = 5


class SamplesNotWritten(StreamServerError):
    """A study that only writes its samples cannot write them: the disk is full, or fails."""

    exit_code = 5


class ModelNotWritten(StreamServerError):
    """The trained model cannot be written: the disk is full, or fails. The last checkpoint has it."""

    exit_code = 9


class DamagedCheckpoint(StreamServerError):
    """Bytes of a checkpoint are missing, or are not those that were saved."""

    exit_code = 6


class OtherFormat(DamagedCheckpoint):
    """The checkpoint is whole, but a release with another format wrote it."""


class NoUsableCheckpoint(StreamServerError):
    """The study was saved before, but nothing of it can be continued; it is not started over without being told to."""

    exit_code = 6


class StaleIncarnation(StreamServerError):
    """This server is an older start of the study than the newest one, and must not change anything any more."""

    exit_code = 7


class RankLost(StreamServerError):
    """Another rank or thread failed, whose log and exit.json hold the cause, or the machine refused something."""

    exit_code = 7


class PeerFailed(RankLost):
    """Another rank failed and told all ranks; `exit_code` is the one they agreed on, if that was in a control round."""

    def __init__(self, text: str, exit_code: int = 7) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class RanksDiverged(StreamServerError):
    """The ranks hold different weights, so they do not train one model any more."""

    exit_code = 8


class InternalError(StreamServerError):
    """Code of this package raised an unexpected exception, which is the cause."""

    exit_code = 70

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The error that tells of an exception, and asks for a report."""
        return cls(
            f"{type(error).__name__}: {error}. This is a bug in Stream Server: please report it with its traceback"
        )


class MalformedMessage(StreamServerError):
    """Bytes from a socket that are no message of this protocol."""


class WrongProtocol(MalformedMessage):
    """A message of another version of the protocol: client and server come from different releases."""


class SimulationError(StreamServerError):
    """The simulation cannot go on talking to the study."""


class Refused(SimulationError):
    """The server refused a message; the text says what it expected, what it found and what to do."""


class StepsLost(SimulationError):
    """The study went back to its last checkpoint, and misses steps there that this process no longer holds.

    Only a new attempt of the simulation can produce them. It does not count as a failure.
    """


class Unreachable(SimulationError, TimeoutError):
    """The server did not answer within the time limit."""


class Closed(StreamServerError):
    """The buffer is closed and empty: the stream has ended."""


class ProducerFailed(StreamServerError):
    """The thread that fills the buffer failed; its exception is the cause."""


FINAL_CODES = frozenset(
    {
        0,
        EXIT_SAVED,
        ConfigError.exit_code,
        TooManyFailures.exit_code,
        NotBalanced.exit_code,
        NoUsableCheckpoint.exit_code,
        ModelNotWritten.exit_code,
    }
)
"""A server that ended with one of these is not started again."""

CODES_BY_BATCH = frozenset({UserCodeError.exit_code, RanksDiverged.exit_code, InternalError.exit_code})
"""A server that ended with one of these twice at the same batch is not: it would happen each time."""

CODES_OF_REFUSAL = frozenset({ConfigError.exit_code, NoUsableCheckpoint.exit_code})
"""A server may end with one of these before it has set anything up."""
