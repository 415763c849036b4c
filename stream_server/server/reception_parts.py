"""Makes what a reception consists of out of study.json and the identity of the run."""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from stream_server.client_api.connection import ConnectionFile, Security
from stream_server.client_api.messages import Away
from stream_server.config import StudyConfig
from stream_server.server import parts
from stream_server.server.access import Access
from stream_server.server.design import ParameterDesign
from stream_server.server.endpoints import Endpoints
from stream_server.server.identity import Identity
from stream_server.server.lobby import StudyFacts
from stream_server.server.plan import Plan
from stream_server.server.ranks import Ranks
from stream_server.server.roster import Roster
from stream_server.server.tracker import Tracker

IPC_FOLDER = "STREAM_IPC_FOLDER"


def make_ipc_folder(ranks: Ranks, stack: ExitStack) -> Path:
    """A private folder for the sockets of this node's ranks; its path is short, since one of a socket must be.

    It goes with `stack`, unless it is a launcher's, who removes it whatever becomes of us. Collective.
    """
    given = os.environ.get(IPC_FOLDER)
    if ranks.local_rank != 0:
        mine: AbstractContextManager[str | None] = nullcontext(None)
    elif given is not None and os.path.isdir(given):
        mine = nullcontext(given)
    else:
        mine = tempfile.TemporaryDirectory(prefix="stream-")
    folders = ranks.broadcast(ranks.gather([ranks.node, stack.enter_context(mine)]))
    return Path(next(folder for node, folder in folders if node == ranks.node and folder is not None))


def make_access(identity: Identity) -> Access | None:
    """The allow-list of one rank; None when nothing is encrypted."""
    if identity.server_keys is None or identity.attaching_keys is None:
        return None
    return Access(identity.server_keys, attaching=identity.attaching_keys.public)


def make_tracker(
    config: StudyConfig, plan: Plan, identity: Identity, ranks: Ranks, *, claim: Callable[[int], list[int]]
) -> Tracker:
    """The bookkeeping of one rank's intake; `claim` gives free slots."""
    return Tracker(
        rank=ranks.rank,
        num_ranks=ranks.size,
        routing=parts.routing(config),
        time_steps=parts.time_steps(config),
        fields=parts.field_specs(config),
        study=identity.study,
        epoch=identity.epoch,
        credit=plan.credit,
        room=plan.credit * plan.max_clients,
        claim=claim,
        # A client rank deals its steps out to all server ranks, and half its window is still free then.
        max_fresh=max(1, config.client.window // (2 * ranks.size * plan.sample_bytes)),
    )


def make_roster(
    config: StudyConfig, design: ParameterDesign, identity: Identity, endpoints: Sequence[Endpoints]
) -> Roster:
    """The simulations of the study, none of which has begun."""
    num_planned = config.study.simulations + config.validation.simulations
    ids = [i for i in range(num_planned + parts.num_redraws(config)) if i < num_planned or design.has(i)]
    facts = StudyFacts(
        study=identity.study,
        epoch=identity.epoch,
        endpoints=tuple(each.data for each in endpoints),
        time_steps=parts.time_steps(config),
        fields=parts.field_specs(config),
        routing=parts.routing(config),
        window_bytes=config.client.window,
        if_server_away=Away[config.client.if_server_away.upper()],
        wait_s=config.client.wait_s,
    )
    return Roster(
        facts,
        [design.parameters(i) for i in ids],
        num_planned=num_planned,
        num_held_out=config.validation.simulations,
        num_ranks=len(endpoints),
        starts_jobs=config.simulation.command is not None,
    )


def make_connection(identity: Identity, zero: Endpoints) -> ConnectionFile:
    """What simulations that nobody launched must know of rank 0; the launcher makes its own ones from it."""
    security = None
    if identity.server_keys is not None and identity.attaching_keys is not None:
        security = Security(
            server_public_key=identity.server_keys.public,
            client_public_key=identity.attaching_keys.public,
            client_secret_key=identity.attaching_keys.secret,
        )
    return ConnectionFile(
        study=identity.study, epoch=identity.epoch, host=zero.host, control=zero.control, security=security
    )
