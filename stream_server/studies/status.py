"""The status of a run: how it is doing, or how it ended."""

from collections.abc import Mapping
from typing import Any

from stream_server.analysis.operating import asked_facts, status_rows
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_state import FAILED, FINISHED, KILLED, LIVE, ORPHANED, STOPPED
from stream_server.errors import EXIT_SAVED
from stream_server.studies.facts import Facts


class RunStatus(Facts):
    """The status of a run at one moment.

    Attributes:
        state: starting, running, restarting, orphaned, finished, stopped, failed or killed.
        detail: who runs it, or how it ended.
        facts: all that `stream-study status --json` prints, among it "server" of a live run and "report" of an ended
            one.
        exit_code: that of stream-launcher or of the server; None while it runs, and where nobody is left to tell.
        log: the last lines that it wrote, of a run that ended otherwise than by finishing.
    """

    def __init__(self, facts: Mapping[str, Any], *, exit_code: int | None = None, log: str = "") -> None:
        self.facts = dict(facts)
        self.state = str(facts["state"])
        self.detail = str(facts["detail"])
        self.exit_code = exit_code
        self.log = log
        rows = status_rows(self.facts)
        if exit_code is not None:
            rows.append(("exit code", str(exit_code)))
        super().__init__(str(facts["run"]), [*rows, *([("log", log)] if log else [])])

    @property
    def is_live(self) -> bool:
        """Whether the run goes on, or is being started."""
        return self.state in LIVE

    @property
    def exit_reason(self) -> str:
        """Why the training ended, as report.json says it, such as "finished" or "saved"; "" without a report."""
        return str(self.facts.get("report", {}).get("exit_reason", ""))


def status_of(run: RunFolder, timeout_s: float, *, exit_code: int | None, log: str) -> RunStatus:
    """The status of a run; `exit_code` is that of its stream-launcher if this process has started and outlived it.

    It may contradict report.json, which is then of an earlier start: this one failed before it wrote its own.
    """
    facts = asked_facts(run, timeout_s)
    if facts["state"] == ORPHANED or (facts["state"] in LIVE and exit_code is None):
        return RunStatus(facts)
    if exit_code is None:
        told = facts.get("report", {}).get("exit_code")
        exit_code = told if isinstance(told, int) else None
    else:
        state = _state_after(exit_code)
        if state != facts["state"]:
            said = [line for line in log.splitlines() if line.strip()]
            facts |= {"state": state, "detail": f"exit code {exit_code}: {said[-1] if said else 'it wrote nothing'}"}
            facts.pop("report", None)
            facts.pop("server", None)
    return RunStatus(facts, exit_code=exit_code, log="" if facts["state"] == FINISHED else log)


def _state_after(exit_code: int) -> str:
    if exit_code < 0:
        return KILLED
    return {0: FINISHED, EXIT_SAVED: STOPPED}.get(exit_code, FAILED)
