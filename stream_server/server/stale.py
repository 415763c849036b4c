"""What those are told who speak for an attempt that is not the current one."""


def stale(simulation: int, attempt: int, *, current: int, state: str = "") -> str:
    """Why nothing is taken from this attempt; `state` is the simulation's terminal one, "" if it has none yet."""
    if state:
        return f"simulation {simulation} is {state.replace('_', ' ')} already"
    if attempt == current:
        return f"attempt {attempt} of simulation {simulation} is over"
    return f"attempt {attempt} of simulation {simulation} is not the current one, which is attempt {current}"
