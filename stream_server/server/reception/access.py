"""Access control over TCP: which CURVE key may speak for whom."""

from collections.abc import Callable, Sequence

from stream_server.messages.client import ATTACHING, Hello, Invalidate, Open
from stream_server.messages.curve import KeyPair, zap_reply


class CurveAccess:
    """The allow-list of one server rank. Receiver thread, once it runs.

    All ranks of a server share the run's key pair, and know each other by it. A client's key speaks for one attempt
    of one simulation; `attaching`, the key in the study's own connection file, for clients that were not launched.
    That of the `operator` is for none of them: it asks about the study and stops it. Unless it `encrypts_tcp`, clients
    come over TCP without keys, and an operator does not.
    """

    def __init__(
        self,
        server: KeyPair,
        *,
        attaching: str | None = None,
        operator: str | None = None,
        encrypts_tcp: bool = True,
    ) -> None:
        self.server = server
        self.attaching = attaching
        self.operator = operator
        self.encrypts_tcp = encrypts_tcp
        self._key_of: dict[int, tuple[int, str]] = {}
        self._attempt_of: dict[str, tuple[int, int]] = {}

    def allow(self, simulation: int, attempt: int, key: str | None) -> None:
        """Make `key` the only one of this simulation, valid for this attempt; None leaves it to `attaching`."""
        self.forget(simulation)
        if key is not None:
            self._key_of[simulation] = (attempt, key)
            self._attempt_of[key] = (simulation, attempt)

    def forget(self, simulation: int) -> None:
        """No key speaks for this simulation any more."""
        _, key = self._key_of.pop(simulation, (0, ""))
        self._attempt_of.pop(key, None)

    def may_speak(self, user: str, simulation: int, attempt: int) -> bool:
        """Whether the holder of key `user` may speak for this attempt."""
        if user == self.attaching:
            return simulation not in self._key_of
        return self._attempt_of.get(user) == (simulation, attempt)

    def is_operator(self, user: str | None) -> bool:
        """Whether the holder of key `user` may ask about the study and stop it."""
        return user is not None and user == self.operator

    def problem(self, user: str, message: Hello | Invalidate | Open) -> str:
        """Why the holder of key `user` may not say this; "" if it may.

        Asked by the `Dispatcher` of each rank for Open, and by rank 0's `Coordinator` for Hello and Invalidate.
        """
        if message.simulation is None or (isinstance(message, Hello) and message.attempt == ATTACHING):
            may_speak = user == self.attaching
        else:
            may_speak = self.may_speak(user, message.simulation, message.attempt)
        if may_speak:
            return ""
        return f"this key does not speak for simulation {message.simulation}, attempt {message.attempt}"

    def answer(self, request: Sequence[bytes], must_wait: Callable[[str], bool] = lambda _: False) -> list[bytes]:
        """The reply to a ZAP request of libzmq; a key that `must_wait` is let in later."""
        return zap_reply(request, self._is_known, must_wait)

    def _is_known(self, key: str) -> bool:
        return key in self._attempt_of or key in (self.server.public, self.attaching, self.operator)
