"""Draws the plan of a schedule from a seed."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from stream_server.buffers import WindowShape
from tests.faults.simulated.plan import Fault, Plan

POLICIES = ("fifo", "firo", "reservoir")
WINDOWS = (WindowShape(length=2), WindowShape(length=3, spacing=2), WindowShape(length=3, stride=2))
SHARE_WITH_WINDOWS = 0.4
SHARE_WITH_STATICS = 0.4
SHARE_RAGGED = 0.2
SHARE_STEERED = 0.4
SHARE_OF_WORKERS = 0.3
OF_STEERING = ("suggester.before_log", "suggester.after_log")
KINDS = ("kill", "stop", "cut", "stall")
WEIGHTS = (6, 2, 2, 1)
TARGETS = ("client", "client", "rank", "rank", "launcher", "mpirun", "shell")
MEAN_S = 3.0
LASTS_S = {"stop": (0.5, 4.0, 15.0, 40.0), "stall": (0.1, 1.0, 15.0)}
AT_FAILPOINTS = 0.6
FAILPOINTS = {
    "client": (
        "client.before_send",
        "client.after_opened",
        "client.before_end",
        "client.after_ended",
        "client.before_reconnect",
        "client.before_resend",
    ),
    "rank": (
        "buffer.before_enqueue",
        "buffer.admitted",
        "buffer.drawn",
        "buffer.released",
        "buffer.closed",
        "buffer.frozen",
        "buffer.thawed",
        "buffer.loaded",
        "checkpoint.before_part",
        "checkpoint.part_written",
        "checkpoint.before_manifest",
        "checkpoint.manifest_written",
        "checkpoint.before_rename",
        "checkpoint.renamed",
        "checkpoint.before_prune",
        "checkpoint.pruned",
        "incarnations.before_append",
        "incarnations.appended",
        "receiver.before_attempt",
        "receiver.before_open",
        "receiver.before_ack",
        "receiver.before_durable",
        "receiver.end_noted",
        "receiver.before_notice",
        "receiver.before_terminal",
        "server.before_study_file",
        "server.model_ready",
        "server.before_announcement",
        "server.trained",
        "server.before_capture",
        "server.all_written",
        "server.before_conclusion",
        "server.before_last_checkpoint",
        "server.before_end",
        "server.before_report",
        "model.before_rename",
        "model.renamed",
    ),
    "launcher": (
        "launcher.before_journal",
        "launcher.after_journal",
        "launcher.before_server_start",
        "launcher.after_server_start",
        "launcher.before_server_kill",
        "launcher.before_submit",
        "launcher.after_submit",
        "launcher.before_replan",
        "launcher.after_replan",
        "launcher.before_reconnect",
    ),
}


def drawn(campaign_seed: int, number: int) -> Plan:
    """Schedule `number` of a campaign; the policies take turns."""
    seed = f"{campaign_seed}/{number}"
    draw = Random(seed)
    has_crasher = draw.random() < 0.1
    num_simulations = draw.choice((2, 3, 3, 4))
    policy = POLICIES[number % len(POLICIES)]
    plan = Plan(
        seed=seed,
        policy=policy,
        num_ranks=draw.choice((1, 2, 2, 2, 3)),
        num_simulations=num_simulations,
        num_steps=draw.choice((5, 8, 12)),
        max_running=draw.choice((1, 2, 3)),
        pseudo_epochs=draw.choice((1, 2)) if policy == "firo" else 1,
        batch_size=draw.choice((1, 2, 3)) if num_simulations > 2 else 1,
        every_batches=draw.choice((1, 3, 6)),
        capacity=draw.choice((8, 16)),
        window_bytes=draw.choice((1 << 20, 8192)),
        simulation_step_s=draw.choice((0.05, 0.3, 0.3, 1.0)),
        step_s=draw.choice((0.3, 0.6) if policy == "reservoir" else (0.02, 0.3)),
        retries=2 if has_crasher else 1000,
        crasher=num_simulations - 1 if has_crasher else None,
        crash=0.0 if has_crasher else draw.choice((0.0, 0.0, 0.3)),
        duplicates=draw.choice((0.0, 0.0, 0.2)),
        delay_s=draw.choice((1e-4, 2e-3, 5e-2)),
        linger=draw.choice((0.5, 0.8, 0.95)),
        mpirun_notices=draw.random() < 0.7,
        client_ranks=draw.choice((1, 1, 2)),
    )
    plan = replace(plan, faults=tuple(_faults(draw, spares_clients=has_crasher)))
    plan = _with_windows(plan, Random(f"{seed}/windows"))
    of_fields = Random(f"{seed}/fields")
    statics, ragged = of_fields.random() < SHARE_WITH_STATICS, of_fields.random() < SHARE_RAGGED
    plan = replace(plan, statics=statics, ragged=ragged)
    return _with_workers(_with_steering(plan, Random(f"{seed}/steering")), Random(f"{seed}/workers"))


def _with_windows(plan: Plan, draw: Random) -> Plan:
    """The same plan with windows, or, more often, without; fewer simulations may run at once than there are ranks."""
    if draw.random() > SHARE_WITH_WINDOWS:
        return plan
    # Each rank has a simulation of its own, whose windows must reach the watermark.
    num_ranks = min(plan.num_ranks, plan.num_simulations - (plan.crasher is not None))
    return replace(plan, window=draw.choice(WINDOWS), num_ranks=num_ranks, capacity=8)


def _with_steering(plan: Plan, draw: Random) -> Plan:
    """The same plan with a class that suggests parameters, or, mostly, without."""
    if draw.random() > SHARE_STEERED:
        return plan
    failpoint, passage = draw.choice(OF_STEERING), draw.randint(1, 3)
    more = (Fault(kind="kill", target="", failpoint=failpoint, passage=passage),) if draw.random() < 0.5 else ()
    return replace(
        plan,
        is_steered=True,
        lookahead=draw.choice((None, 1)),
        log_every_batches=draw.choice((1, 1, 3)),
        enough=None if plan.crasher is not None or draw.random() < 0.5 else draw.randint(1, plan.num_steps),
        faults=(*plan.faults, *more),
    )


def _with_workers(plan: Plan, draw: Random) -> Plan:
    """The same plan with workers that run several simulations, or, mostly, without."""
    if draw.random() > SHARE_OF_WORKERS or plan.crasher is not None or plan.client_ranks > 1:
        return plan
    return replace(
        plan,
        per_worker=draw.choice((2, 100)),
        num_simulations=6,
        num_steps=5,
        lookahead=2 * plan.max_running + 1 if plan.is_steered else None,
    )


def _faults(draw: Random, *, spares_clients: bool) -> Iterator[Fault]:
    at = 0.0
    for _ in range(draw.randint(1, 4)):
        at += draw.uniform(0.0, MEAN_S * 2)
        kind = draw.choices(KINDS, WEIGHTS)[0]
        lasts_s = draw.choice(LASTS_S[kind]) if kind in LASTS_S else 0.0
        if kind in ("kill", "stop") and draw.random() < AT_FAILPOINTS:
            names = FAILPOINTS[draw.choice([it for it in FAILPOINTS if it != "client" or not spares_clients])]
            passage = 1 + int(draw.expovariate(0.3))
            yield Fault(kind=kind, target="", failpoint=draw.choice(names), passage=passage, lasts_s=lasts_s)
        else:
            targets = [it for it in TARGETS if it not in ("client", "shell") or not spares_clients]
            target = draw.choice(targets) if kind in ("kill", "stop") else ""
            if kind != "cut" or not spares_clients:
                yield Fault(kind=kind, target=target, at=at, lasts_s=lasts_s)
