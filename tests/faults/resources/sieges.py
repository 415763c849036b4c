"""One server under all attacks, one after the other; then it does its work as if nothing had been."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.hostile_client import HostileClient
from tests.faults.resources.attacks import HELD, UNHELD, Attack
from tests.faults.resources.victim import NUM_SIMULATIONS, NUM_STEPS, Victim, victim

Tell = Callable[["Effect"], None]
Siege = Callable[..., list["Effect"]]

WITHDRAWN = (1, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """By how many bytes the memory of a server grew, and by how many it might."""

    attack: str
    grown: int
    allowed: int

    @property
    def is_too_much(self) -> bool:
        return self.grown > self.allowed


def suffered(it: Victim, attacks: Sequence[Attack], num: int, tell: Tell) -> list[Effect]:
    """Let one attack after the other do its worst."""
    effects = []
    for attack in attacks:
        it.forget_peak()
        before = it.memory()["rss"]
        with HostileClient(it) as client:
            attack.run(client, num)
        effect = Effect(attack=attack.name, grown=it.memory()["peak"] - before, allowed=attack.allowed(it))
        tell(effect)
        effects.append(effect)
    return effects


def unheld(num: int, tell: Tell = lambda _: None) -> list[Effect]:
    """A server that reads what comes; two of its simulations are spoilt and withdrawn, the others are trained."""
    with victim() as it:
        effects = suffered(it, UNHELD, num, tell)
        it.simulate(*(number for number in range(NUM_SIMULATIONS) if number not in WITHDRAWN))
        done = it.live.end()
        assert done.exit_code == 0, done.output
        account = done.account
        assert account["accepted"] == account["trained"] + account["withdrawn"], account
        assert account["trained"] >= (NUM_SIMULATIONS - len(WITHDRAWN)) * NUM_STEPS
    return effects


def held(num: int, tell: Tell = lambda _: None) -> list[Effect]:
    """A server whose user code keeps Python from reading anything; what it then has in its queues is junk."""
    with victim(is_held=True) as it:
        sender = threading.Thread(target=it.simulate, args=(0,), name="simulation 0")
        sender.start()
        output_dir: Path = it.live.output_dir
        it.wait_until((output_dir / "held").exists)
        effects = suffered(it, HELD, num, tell)
        (output_dir / "hold").write_bytes(b".")
        sender.join()
        it.simulate(*range(1, NUM_SIMULATIONS))
        it.end()
    return effects
