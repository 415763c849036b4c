"""Suggestions for the simulations that come next, made ahead of their start. Rank 0.

Why: docs/decisions/0061-steering-queue.md
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Self

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, StreamServerError, UserCodeError
from stream_server.failpoints import failpoint
from stream_server.launcher.schedule.shared_jobs import num_for_worker
from stream_server.samplers.generator import KIND, Values
from stream_server.samplers.sequences import Sampler, make_sampler
from stream_server.server.intake.parameters import Origin
from stream_server.server.simulations.design import (
    TRAINING_STREAM,
    VALIDATION_STREAM,
    append_csv,
    generator_seed,
    stream_seed,
)
from stream_server.server.steering.feedback import OWN
from stream_server.server.steering.generator_process import GeneratorProcess, NoAnswer
from stream_server.server.steering.suggestion_log import Suggestion, SuggestionLog

MOST_LOST = 3
WRITE_AGAIN_S = 5.0
STREAMS = {"training": TRAINING_STREAM, "validation": VALIDATION_STREAM}

log = logging.getLogger(__name__)


def check_learning(config: StudyConfig, *, learns: bool) -> None:
    """Check that the study goes with a class of `parameters.sampler` that learns, or does not.

    Raises:
        ConfigError: of one that learns, the simulations of a job start together, no worker would ever get two of them,
            or a parameter is named like a result; one that does not learn would ignore `lookahead`.
    """
    simulation, name, ahead = config.simulation, config.parameters.sampler, _ready_ahead(config)
    if not learns:
        if name.lookahead is not None:
            raise ConfigError(
                f"parameters.sampler.lookahead would be ignored, since {name} has no ingest and suggests all at the "
                "start: leave it out"
            )
        return
    if simulation.per_job != 1:
        raise ConfigError(
            f"simulation.per_job is {simulation.per_job}, but {name} learns while the study runs, "
            "and the simulations of a job start together: leave it out, or use a class without ingest"
        )
    max_running = config.launcher.max_running
    if simulation.per_worker != 1 and num_for_worker(ahead, most=2, max_running=max_running) == 1:
        raise ConfigError(
            f"simulation.per_worker would be ignored: while parameters.sampler.lookahead is {ahead}, a "
            "worker gets one simulation, for it gets one in 2 × launcher.max_running of those that are ready. "
            f"Write {2 * max_running + 1} or more there"
        )
    if names := sorted(OWN & config.parameters.scalars.keys()):
        raise ConfigError(
            f"parameters.bounds: {', '.join(names)} is what {name} is told of each simulation "
            "besides its parameters: choose another name, or use a class without ingest"
        )


def _ready_ahead(config: StudyConfig) -> int:
    if config.study.rounds is not None:
        return config.study.rounds.simulations
    runs = config.launcher.max_running if config.simulation.command is not None else config.client.max_attached
    return config.parameters.sampler.lookahead or max(1, runs)


class Suggester:
    """Gets the parameters of the simulations 0, 1, 2, … from the user's class, and each only once.

    A thread of its own asks the class, which runs in a process of its own, as soon as more are wanted. What the class
    does not suggest in time, or suggests again, is taken from the fallback. A suggestion is on disk before `deliver`
    is called with it, so that no simulation ever gets two sets of parameters. A class that stops simulations hears of
    results at once.

    Attributes:
        learns: the class has `ingest`, or has not said yet.
        error: what ended the thread, if it did not end as it should.
        lookahead: how many suggestions are to be ready; all at once if the class does not learn.
    """

    def __init__(self, config: StudyConfig, folder: Path, *, parameters_csv: Path) -> None:
        self._config = config
        self._settings = config.parameters.sampler
        self._bounds = config.parameters.scalars
        # Of whole numbers alone there may be fewer points than simulations.
        self._may_repeat = all(limits.integer for limits in self._bounds.values())
        self._num_held_out = config.validation.simulations
        self._num_planned = config.validation.simulations + config.study.simulations
        self._parameters_csv = parameters_csv
        self._log = SuggestionLog(folder, len(self._bounds))
        self._process = GeneratorProcess(folder / "logs" / "sampler.log")
        self._fallbacks = {name: self._fallback(name) for name in STREAMS}
        self._known: dict[str, set[Values]] = {name: set() for name in STREAMS}
        self._problem = ""
        self._num_lost = 0
        self.lookahead = 0
        self.learns = True
        self.error: BaseException | None = None
        self._results: dict[int, Mapping[str, float]] = {}
        self._news: dict[int, Mapping[str, float]] = {}
        self._wanted = 0
        self._condition = Condition()
        self._is_leaving = False
        self._deliver: Callable[[Mapping[int, dict[str, float]]], None] = lambda _: None
        self._end_early: Callable[[int, str], None] = lambda _simulation, _reason: None
        # True until the class has said whether it stops simulations.
        self._stops = True
        self._has_enough = False
        self._finish: Callable[[str], None] = lambda _reason: None
        self._thread = Thread(target=self._run, name="suggester")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Read what was suggested before, and get the first suggestions. Main thread.

        Raises:
            ConfigError, UserCodeError: the class cannot be used, or raised, or its first suggestions are none.
        """
        with ExitStack() as stack:
            stack.enter_context(self._log)
            for suggestion in self._log.suggestions:
                self._known["validation" if suggestion.simulation < self._num_held_out else "training"].add(
                    suggestion.values
                )
            stack.callback(self._process.close)
            self._begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._condition:
            self._is_leaving = True
            self._condition.notify()
        # Nobody answers the thread any more.
        self._process.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._stack.close()

    @property
    def suggestions(self) -> Sequence[Suggestion]:
        """The suggestions so far; number i is for simulation i."""
        return self._log.suggestions

    @property
    def parameters(self) -> list[dict[str, float]]:
        """The parameters of simulations 0, 1, 2, …, as far as they were suggested."""
        return [self._by_name(suggestion) for suggestion in self.suggestions]

    @property
    def origins(self) -> dict[int, Origin]:
        """The origin of the parameters of each of the simulations 0, 1, 2, …"""
        return _origins(self.suggestions)

    @property
    def warnings(self) -> list[str]:
        """Warnings about suggestions by the fallback in place of the class."""
        num = sum(suggestion.by == self._settings.fallback for suggestion in self.suggestions)
        if not num:
            return []
        why = f": {self._problem}" if self._problem else ""
        text = (
            f"{num} of {len(self.suggestions)} simulations have parameters of the fallback ({self._settings.fallback})"
        )
        log = self._process.log
        written = f"; logs/{log.name} has what the class wrote" if log.exists() and log.stat().st_size else ""
        return [f"{text}{why}{written}"]

    def start(
        self,
        deliver: Callable[[Mapping[int, dict[str, float]]], None],
        end_early: Callable[[int, str], None] = lambda _simulation, _reason: None,
        finish: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """From now on suggest what is wanted, and `deliver` it, in the thread of this object.

        `end_early` gets the simulations of which the class wants nothing more, and a reason; `finish` gets a reason
        when it wants no other simulation.
        """
        self._deliver, self._end_early, self._finish = deliver, end_early, finish
        self._thread.start()

    def want(self, num: int) -> None:
        """Suggestions are wanted for the first `num` simulations. Any thread; never waits."""
        if num > self._wanted:
            with self._condition:
                self._wanted = num
                self._condition.notify()

    def ingest(self, results: Mapping[int, Mapping[str, float]]) -> None:
        """Tell the class the newest results of these simulations before it is next asked. Any thread; never waits.

        As gest-api has it, a result has the parameters and what came of them in one.
        """
        with self._condition:
            self._results |= results
            self._news |= results
            if self._stops:
                self._condition.notify()

    def _begin(self) -> None:
        num_known = len(self.suggestions)
        # With all that were planned, redraws are left to suggest, each as soon as it is wanted.
        has_planned = num_known >= self._num_planned
        self.lookahead = self._num_planned if has_planned else _ready_ahead(self._config)
        try:
            self.learns = self._start_process()
        except (NoAnswer, StreamServerError) as error:
            if num_known:
                self._note(str(error))
                return
            if isinstance(error, NoAnswer):
                raise UserCodeError(f"{KIND}: no parameters were suggested: {error}") from error
            raise
        if has_planned:
            return
        check_learning(self._config, learns=self.learns)
        if not self.learns:
            self.lookahead = self._num_planned
        first = min(self._num_planned, self._num_held_out + self.lookahead)
        if not num_known or not self.learns:
            self._log.append(self._suggest(range(num_known, first)))

    def _run(self) -> None:
        try:
            self._suggest_as_wanted()
        except BaseException as error:
            log.exception("the thread that gets suggestions failed")
            self.error = error

    def _suggest_as_wanted(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_leaving or self._has_work)
                if self._is_leaving:
                    return
                simulations = range(len(self.suggestions), 0 if self._has_enough else self._wanted)
            if not simulations:
                self._tell_news()
                continue
            suggested = self._suggest(simulations)
            if self._has_enough:
                self._finish(f"{self._settings} has enough: no further simulation is suggested")
                continue
            if self._is_leaving:
                # They may be of the fallback, since the class was cut short; no simulation has been told of them.
                return
            failpoint("suggester.before_log")
            if not self._write(suggested):
                return
            failpoint("suggester.after_log")
            parameters = {suggestion.simulation: self._by_name(suggestion) for suggestion in suggested}
            try:
                append_csv(self._parameters_csv, parameters, _origins(suggested))
            except OSError as error:
                # Written again at the next start; nothing else depends on it.
                log.error("%s lacks simulations: %s", self._parameters_csv.name, error)
            self._deliver(parameters)

    @property
    def _has_work(self) -> bool:
        return (self._wanted > len(self.suggestions) and not self._has_enough) or (self._stops and bool(self._news))

    def _tell_news(self) -> None:
        try:
            self._hear(time.monotonic() + self._settings.timeout_s)
        except (NoAnswer, StreamServerError) as error:
            self._note(f"{self._settings}: {error}" if isinstance(error, NoAnswer) else str(error))
            if not self._process.runs:
                with self._condition:
                    # It is told all of them when it has started over.
                    self._news = {}

    def _by_name(self, suggestion: Suggestion) -> dict[str, float]:
        return dict(zip(self._bounds, suggestion.values, strict=True))

    def _write(self, suggested: Sequence[Suggestion]) -> bool:
        """Put suggestions on disk, however long it refuses; False if the study ends before."""
        while True:
            try:
                self._log.append(suggested)
                return True
            except OSError as error:
                log.error("no simulation gets parameters as long as the disk refuses: %s", error)
            with self._condition:
                if self._condition.wait_for(lambda: self._is_leaving, WRITE_AGAIN_S):
                    return False

    def _suggest(self, simulations: range) -> list[Suggestion]:
        held_out = range(simulations.start, min(simulations.stop, self._num_held_out))
        trained = range(max(simulations.start, self._num_held_out), simulations.stop)
        return [*self._suggest_for("validation", held_out), *self._suggest_for("training", trained)]

    def _suggest_for(self, stream: str, simulations: range) -> list[Suggestion]:
        points = self._ask_for(stream, len(simulations)) if simulations else []
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        suggestions = [
            Suggestion(simulation=simulation, values=values, by=str(self._settings), at=at, score=score)
            for simulation, (values, score) in zip(simulations, points, strict=False)
        ]
        first = 0 if stream == "validation" else self._num_held_out
        for simulation in () if self._has_enough else simulations[len(suggestions) :]:
            values = self._fallbacks[stream].values(simulation - first)
            suggestions.append(Suggestion(simulation=simulation, values=values, by=self._settings.fallback, at=at))
        self._known[stream].update(suggestion.values for suggestion in suggestions)
        return suggestions

    def _ask_for(self, stream: str, num: int) -> list[tuple[Values, float | None]]:
        """At most `num` points of the class that were never suggested before."""
        until = time.monotonic() + self._settings.timeout_s
        pairs: list[tuple[Values, float | None]] = []
        known = set(self._known[stream])
        most_asked = num + len(known)
        # A class that starts over after a restart may suggest again what it has suggested before.
        while len(pairs) < num and most_asked > 0:
            missing = num - len(pairs)
            most_asked -= missing
            try:
                may_end = stream == "training" and bool(self.suggestions) and not pairs
                answer = self._ask({"do": "suggest", "stream": stream, "num": missing, "may_end": may_end}, until)
            except (NoAnswer, StreamServerError) as error:
                self._note(f"{self._settings}: {error}" if isinstance(error, NoAnswer) else str(error))
                break
            if answer.get("enough"):
                self._has_enough = True
                break
            for row, score in answer["points"]:
                values = tuple(row)
                if values not in known or self._may_repeat:
                    self._num_lost = 0
                    known.add(values)
                    pairs.append((values, score))
            if answer["problem"]:
                self._note(answer["problem"])
                break
        else:
            if len(pairs) < num:
                self._tell(f"{self._settings}: suggest({num}) gave points again that it had given before")
        return pairs

    def _ask(self, request: Mapping[str, Any], until: float) -> dict[str, Any]:
        self._hear(until)
        return self._answer(request, until)

    def _hear(self, until: float) -> None:
        """Tell the class what is new, and end the simulations of which it wants no more."""
        begins = not self._process.runs
        if begins:
            self.learns = self._start_process()
        with self._condition:
            news, self._news = dict(self._results) if begins else self._news, {}
        if news and self.learns:
            answer = self._answer({"do": "ingest", "results": self._rows(news)}, until)
            for simulation in answer["stop"]:
                self._end_early(simulation, f"{self._settings} wants nothing more of it")

    def _answer(self, request: Mapping[str, Any], until: float) -> dict[str, Any]:
        try:
            return self._process.ask(request, max(0.0, until - time.monotonic()))
        except NoAnswer:
            self._num_lost += 1
            raise

    def _rows(self, results: Mapping[int, Mapping[str, float]]) -> list[dict[str, float]]:
        return [
            {"simulation": simulation, "held_out": float(simulation < self._num_held_out), **result}
            for simulation, result in sorted(results.items())
        ]

    def _start_process(self) -> bool:
        """Start the process again; returns whether the class learns."""
        if self._num_lost >= MOST_LOST:
            raise NoAnswer(f"it was switched off after {MOST_LOST} failures in a row")
        # One that starts over must not draw the same random numbers again.
        key = [len(self.suggestions)] if self.suggestions else []
        seeds = {name: generator_seed(self._config.study.data_seed, stream, *key) for name, stream in STREAMS.items()}
        request = {
            "do": "begin",
            "class": self._settings.class_,
            "args": self._settings.args,
            "bounds": {name: limits.model_dump(mode="json") for name, limits in self._bounds.items()},
            "folder": str(self._config.study_dir),
            "seeds": seeds,
        }
        answer = self._answer(request, time.monotonic() + self._settings.timeout_s)
        self._stops = bool(answer["stops"])
        return bool(answer["learns"])

    def _note(self, problem: str) -> None:
        if not self.suggestions:
            raise UserCodeError(problem)
        self._tell(problem)

    def _tell(self, problem: str) -> None:
        if problem != self._problem and not self._is_leaving:
            log.warning("%s: parameters come from the fallback (%s)", problem, self._settings.fallback)
        self._problem = problem

    def _fallback(self, stream: str) -> Sampler:
        config, name = self._config, self._settings.fallback
        num = config.validation.simulations if stream == "validation" else config.study.simulations
        seed = stream_seed(config.study.data_seed, STREAMS[stream])
        return make_sampler(name, self._bounds, seed, num, folder=config.study_dir)


def _origins(suggestions: Sequence[Suggestion]) -> dict[int, Origin]:
    return {each.simulation: Origin(by=each.by, at=each.at, score=each.score) for each in suggestions}
