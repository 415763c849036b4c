"""The section `buffer` of study.json, for each policy."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from stream_server.built_in import POLICIES, registered
from stream_server.config.values import (
    CLASS_REFERENCE,
    Capacity,
    ClassReference,
    Count,
    Section,
)

WATERMARK_PART = 5


class BufferSection(Section):
    """`buffer`: the sample buffer of each server rank; the keys that every policy has."""

    capacity: Capacity = Field(
        description='Samples of a rank, or a size such as `"4GiB"` (fields without `dtype` count 8 bytes per value).',
        examples=[2500],
    )
    routing: Literal["steps", "simulations"] = Field(
        default="steps",
        description='`"steps"`: time steps are dealt to the ranks in turn; `"simulations"`: all steps of a simulation '
        'go to one rank. Default: `"steps"`; with `samples.window` `"simulations"`.',
    )

    @property
    def has_own_policy(self) -> bool:
        """Whether the policy is a class of the user's."""
        return isinstance(self, OwnBuffer)


Watermark = Annotated[
    Count,
    Field(
        default_factory=lambda keys: max(1, keys.get("capacity", 0) // WATERMARK_PART),
        description="Samples that must wait before training starts; not with fifo. Default: a fifth of `capacity`.",
    ),
]
PseudoEpochs = Annotated[
    Count, Field(default=1, description="Draws of each sample; firo, and policies of your own that take it.")
]


def _reference_of(policy: Any) -> Any:
    """The class that a package registers as this policy, or else what is given."""
    is_name = isinstance(policy, str) and policy not in POLICIES and not CLASS_REFERENCE.fullmatch(policy)
    return registered("policies").get(policy, policy) if is_name else policy


class OwnBuffer(BufferSection):
    """`buffer` with a policy that is a class of the user's, or of an installed package."""

    policy: Annotated[ClassReference, BeforeValidator(_reference_of)] = Field(
        description='`"FILE.py:Class"`: a policy of your own (docs/guide/extending.md#a-buffer-policy).'
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of a policy of your own.")
    watermark: Watermark
    pseudo_epochs: PseudoEpochs


class FifoBuffer(BufferSection):
    """`buffer` with the policy "fifo", which hands out every sample as it comes."""

    args: ClassVar[dict[str, Any]] = {}

    policy: Literal["fifo"] = Field(description="Each sample once, in order.")

    watermark: ClassVar[int] = 1
    pseudo_epochs: ClassVar[int] = 1


class FiroBuffer(BufferSection):
    """`buffer` with the policy "firo", which hands out samples in random order."""

    args: ClassVar[dict[str, Any]] = {}

    policy: Literal["firo"] = Field(description="Each sample `pseudo_epochs` times, in random order.")
    watermark: Watermark
    pseudo_epochs: PseudoEpochs


class ReservoirBuffer(BufferSection):
    """`buffer` with the policy "reservoir", which hands out samples again until newer ones need the room."""

    args: ClassVar[dict[str, Any]] = {}

    policy: Literal["reservoir"] = Field(
        default="reservoir", description="Drawn again and again until newer ones need the room, each at least once."
    )
    watermark: Watermark

    pseudo_epochs: ClassVar[int] = 1


class UniformBuffer(BufferSection):
    """`buffer` with the policy "uniform", a reservoir whose samples are spread over all that ever came."""

    args: ClassVar[dict[str, Any]] = {}

    policy: Literal["uniform"] = Field(
        description="As a reservoir, but what it keeps is spread evenly over all samples that ever came."
    )
    watermark: Watermark

    pseudo_epochs: ClassVar[int] = 1


def _policy_of(buffer: Any) -> Any:
    """The kind of a section; one whose policy is unknown is checked as that of a reservoir, which says so."""
    policy = buffer.get("policy", "reservoir") if isinstance(buffer, dict) else getattr(buffer, "policy", "reservoir")
    if isinstance(policy, str) and policy in POLICIES:
        return policy
    return "own" if isinstance(policy, str) and CLASS_REFERENCE.fullmatch(_reference_of(policy)) else "reservoir"


Buffer = Annotated[
    Annotated[ReservoirBuffer, Tag("reservoir")]
    | Annotated[UniformBuffer, Tag("uniform")]
    | Annotated[FiroBuffer, Tag("firo")]
    | Annotated[FifoBuffer, Tag("fifo")]
    | Annotated[OwnBuffer, Tag("own")],
    Discriminator(_policy_of),
]
