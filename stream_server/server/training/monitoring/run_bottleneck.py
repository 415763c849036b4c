"""The bottleneck of a run that is over, from the time of its phases, and what to change."""

from collections.abc import Mapping

LEAST_S = 1.0
# The share of the time from which on something holds a run up, at its end as while it goes on.
MUCH = 0.3
# Threads of their own, beside the training.
BESIDE = ("receive", "prefetch")
TRAINING = ("step", "forward", "backward", "optimizer")
ADVICE = {
    "waiting": (
        "training waited for data {:.0%} of the time: run more simulations at once (launcher.max_running), or draw "
        "each sample more often (training.draws_per_sample of a reservoir)"
    ),
    "crowded": (
        "training waited for data {:.0%} of the time, and simulations for cores: give them more cores or nodes, or "
        "draw each sample more often (training.draws_per_sample of a reservoir)"
    ),
    "forming": (
        "forming batches took {:.0%} of the time: training.prefetch forms them beside the step, and process_batch a "
        "whole batch at once, where process_simulation_data is called for each sample"
    ),
    "validation": (
        "validation took {:.0%} of the time: validate less often (validation.every_batches) or on fewer samples "
        "(validation.simulations)"
    ),
    "checkpoint": "checkpoints took {:.0%} of the time: save less often (checkpoint.every_s)",
    "log": "writing metrics took {:.0%} of the time: write them less often (training.log_every_batches)",
    "ranks": (
        "the ranks took {:.0%} of the time to meet (all_reduce, round), waits for the slowest included: with fewer "
        "ranks, a larger training.batch_size or training.accumulate they meet less often"
    ),
    "training": (
        "training was busy {:.0%} of the time: where simulations wait for it, only a faster model, a faster device or "
        "more ranks end the study sooner; --fake-data measures it alone"
    ),
}


def bottleneck_of_run(phases_s: Mapping[str, float], *, oversubscribed: bool = False) -> str:
    """One sentence on what took most of the time of the ranks' main threads; "" if nothing stands out.

    `phases_s` are seconds by phase, those of `Phases`, as in report.json. `oversubscribed`: there were more processes
    than cores.
    """
    seconds = {name: s for name, s in phases_s.items() if name not in BESIDE}
    total = sum(seconds.values())
    if total < LEAST_S:
        return ""
    groups = {
        "crowded" if oversubscribed else "waiting": seconds.get("wait_for_data", 0.0),
        "forming": seconds.get("transform", 0.0) + seconds.get("gather", 0.0),
        "validation": seconds.get("validation", 0.0),
        "checkpoint": seconds.get("checkpoint", 0.0),
        "log": seconds.get("log", 0.0),
        "ranks": seconds.get("all_reduce", 0.0) + seconds.get("round", 0.0),
        "training": sum(seconds.get(name, 0.0) for name in TRAINING),
    }
    name = max(groups, key=groups.__getitem__)
    share = groups[name] / total
    return ADVICE[name].format(share) if share >= MUCH else ""
