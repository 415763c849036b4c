"""Builds the parts of a reception from study.json and the identity of the run."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig
from stream_server.machine import private_folder
from stream_server.messages.client import Away, Welcome
from stream_server.messages.connection import ConnectionFile, Security
from stream_server.messages.curve import KeyPair
from stream_server.messages.routing import Dealing
from stream_server.server.intake.intake import Intake
from stream_server.server.intake.state import MAX_UNSAID_RANKS, IntakeState
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.sockets import Endpoints
from stream_server.server.run import build
from stream_server.server.run.identity import Identity
from stream_server.server.run.plan import RankPlan
from stream_server.server.simulations.design import ParameterDesign
from stream_server.server.simulations.roster import Roster
from stream_server.server.steering.suggester import Suggester

IPC_FOLDER = "STREAM_IPC_FOLDER"


def make_ipc_folder(ranks: Ranks, stack: ExitStack) -> Path:
    """A private folder for the sockets of this node's ranks; its path is short, since one of a socket must be.

    It goes with `stack`, unless it is a launcher's, who removes it whatever becomes of us. Collective.
    """
    given = os.environ.get(IPC_FOLDER)
    if ranks.local_rank != 0:
        mine: AbstractContextManager[Path | None] = nullcontext()
    elif given is not None and private_folder.is_private(Path(given)):
        mine = nullcontext(Path(given))
    else:
        mine = private_folder.temporary()
    folder = stack.enter_context(mine)
    folders = ranks.broadcast(ranks.gather([ranks.node, folder and str(folder)]))
    return Path(next(folder for node, folder in folders if node == ranks.node and folder is not None))


def make_access(identity: Identity) -> CurveAccess:
    """The allow-list of one rank."""
    attaching = identity.attaching_keys
    return CurveAccess(
        identity.server_keys,
        attaching=None if attaching is None else attaching.public,
        operator=identity.operator_keys.public,
        encrypts_tcp=attaching is not None,
    )


def make_intake(
    config: StudyConfig,
    plan: RankPlan,
    identity: Identity,
    ranks: Ranks,
    *,
    buffer: Buffer,
    validation: ValidationStore,
) -> Intake:
    return Intake(
        IntakeState(
            rank=ranks.rank,
            dealing=Dealing(build.routing(config), ranks.size),
            time_steps=build.time_steps(config),
            fields=build.field_specs(config),
            study=identity.study,
            incarnation=identity.incarnation,
            credit=plan.credit,
            # A program that is started alone may start ranks of its own.
            client_ranks=config.simulation.ranks if config.simulation.ranks > 1 else MAX_UNSAID_RANKS,
        ),
        buffer=buffer,
        validation=validation,
        credit_slots=plan.credit * plan.max_clients,
        # A client rank deals its steps out to all server ranks, and half its window is still free then.
        max_unsaved=max(1, config.client.window // (2 * ranks.size * plan.sample_bytes)),
        nonfinite=config.training.nonfinite,
    )


def make_roster(
    config: StudyConfig,
    design: ParameterDesign,
    suggester: Suggester | None,
    identity: Identity,
    endpoints: Sequence[Endpoints],
    *,
    num_rounds: int = 0,
) -> Roster:
    """The simulations of the study, none of which has begun, after `num_rounds` rounds.

    Their parameters are those of the `design`, or those that were suggested; the others are suggested later.
    """
    num_planned = config.study.simulations + config.validation.simulations
    num = num_planned + build.num_redraws(config)
    parameters: list[dict[str, float] | None]
    if suggester is None:
        parameters = [design.parameters(i) for i in range(num) if i < num_planned or design.has(i)]
    else:
        suggested = suggester.parameters[:num]
        parameters = [*suggested, *[None] * (num - len(suggested))]
    facts = Welcome(
        study=identity.study,
        simulation=0,
        attempt=0,
        parameters={},
        incarnation=identity.incarnation,
        endpoints=tuple(each.data for each in endpoints),
        time_steps=build.time_steps(config),
        fields=build.field_specs(config),
        routing=build.routing(config),
        window_bytes=config.client.window,
        if_server_away=Away(config.client.if_server_away),
        wait_s=config.client.wait_s,
    )
    return Roster(
        facts,
        parameters,
        names=design.names,
        lookahead=0 if suggester is None else suggester.lookahead,
        num_released=config.num_released(num_rounds),
        origins_of=None if suggester is None else lambda: suggester.origins,
        num_planned=num_planned,
        num_held_out=config.validation.simulations,
        num_ranks=len(endpoints),
        starts_jobs=config.simulation.command is not None,
        num_samples_of=config.num_samples_of,
    )


def make_connection(identity: Identity, zero: Endpoints) -> ConnectionFile:
    """The connection file for simulations that nobody launched; the launcher derives those of its jobs from it."""
    keys = identity.attaching_keys
    security = None if keys is None else _security(identity, keys)
    return ConnectionFile(
        study=identity.study, incarnation=identity.incarnation, host=zero.host, control=zero.control, security=security
    )


def make_operator_file(identity: Identity, zero: Endpoints) -> ConnectionFile:
    """The connection file for operators: the addresses of rank 0 that ask for their key, and that key."""
    return ConnectionFile(
        study=identity.study,
        incarnation=identity.incarnation,
        host=zero.host,
        control=zero.operator,
        security=_security(identity, identity.operator_keys),
    )


def _security(identity: Identity, keys: KeyPair) -> Security:
    return Security(
        server_public_key=identity.server_keys.public,
        client_public_key=keys.public,
        client_secret_key=keys.secret,
    )
