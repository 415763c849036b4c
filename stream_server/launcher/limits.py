"""The rules of a study that the schedule keeps."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The rules of the study. `starts_jobs` is False when simulations only attach by themselves.

    `num_simulations` is what `max_failed` is a share of; never less than the largest plan.
    """

    starts_jobs: bool = True
    max_running: int = 1
    per_job: int = 1
    max_attached: int = 4
    retries: int = 2
    on_failure: str = "give_up"
    max_failed: float = 0.1
    timeout_s: float = 600.0
    num_simulations: int = 0
