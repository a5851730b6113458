"""A study: a tuner's trials on one space, kept as rows from the first to the last, whatever stops it in between."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from meshwright.budget import spent
from meshwright.search.tuners.base import STATUSES, Outcome, Point, Rules, Trial, TunableSpace
from meshwright.search.tuners.store import TrialStore

LEAST_TRIALS = 10
"""Made beyond a limit where none is ok: a study answers with a plan where there is one to be found quickly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a tuner found."""

    space: str
    objective: str
    tuner: str
    algorithm: str
    scheduler: str
    seed: int
    trials: tuple[Trial, ...]
    resumed: int
    """Trials that earlier runs had made."""

    @property
    def best(self) -> Trial | None:
        """The best trial that is ok, None if none is."""
        good = [trial for trial in self.trials if trial.outcome.status == "ok"]
        return min(good, key=lambda trial: (trial.outcome.value or math.inf, trial.number), default=None)

    @property
    def counts(self) -> dict[str, int]:
        """Trials by status."""
        found = Counter(trial.outcome.status for trial in self.trials)
        return {status: found[status] for status in STATUSES if found[status]}

    @property
    def wall_s(self) -> float:
        """Seconds of all runs of the study, until its last trial."""
        return max((trial.at_s for trial in self.trials), default=0.0)

    def incumbents(self) -> list[tuple[int, float]]:
        """(trials so far, best value so far) after every trial that is better than all before."""
        best, found = math.inf, []
        for done, trial in enumerate(self.trials, start=1):
            value = trial.outcome.value
            if trial.outcome.status == "ok" and value is not None and value < best:
                best = value
                found.append((done, best))
        return found


@dataclass(slots=True)
class TrialLog:
    """Where a running study puts its trials: numbered, timed, and kept before the next one starts."""

    space: TunableSpace
    rules: Rules
    target: int
    """Trials wanted in all."""
    trials: list[Trial]
    store: TrialStore | None
    on_trial: Callable[[Trial], None] | None = None
    resumed: int = field(init=False)
    _before_s: float = field(init=False)
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self.resumed = len(self.trials)
        self._before_s = max((trial.at_s for trial in self.trials), default=0.0)
        self._started = time.perf_counter()

    @property
    def left(self) -> int:
        """Trials still to make; beyond a limit only a few, until one of the study is ok."""
        enough = len(self.trials) >= self.resumed + LEAST_TRIALS or any(
            one.outcome.status == "ok" for one in self.trials
        )
        return 0 if enough and spent() else max(0, self.target - len(self.trials))

    def judge(self, point: Point) -> Outcome:
        """Price a point; see `judged`."""
        return judged(self.space, self.rules, point)

    def bound(self, point: Point) -> float | None:
        """A value the point cannot be below; see `bounded`."""
        return bounded(self.space, self.rules, point)

    def run(self, point: Point) -> Trial:
        """Price a point here and keep the row."""
        started = time.perf_counter()
        outcome = self.judge(point)
        return self.keep(point, outcome, time.perf_counter() - started)

    def keep(self, point: Point, outcome: Outcome, took_s: float) -> Trial:
        """Keep the row of a point that was priced."""
        trial = Trial(
            number=len(self.trials),
            point=point,
            outcome=outcome,
            took_s=took_s,
            at_s=self._before_s + time.perf_counter() - self._started,
        )
        self.trials.append(trial)
        if self.store is not None:
            self.store.append(trial)
        if self.on_trial is not None:
            self.on_trial(trial)
        return trial


def bounded(space: TunableSpace, rules: Rules, point: Point) -> float | None:
    """A value the point cannot be below; None where there is none or it cannot be found."""
    try:
        return None if rules.broken(point) else space.bound(point)
    except Exception:
        # The trial itself will say what is wrong.
        return None


def judged(space: TunableSpace, rules: Rules, point: Point) -> Outcome:
    """Price a point; whatever goes wrong is the row's status and reason.

    Args:
        space: prices legal points.
        rules: the rules of the space.
        point: one value an axis.

    Returns:
        The outcome: `illegal` with the broken rule, `error` with what was raised, or what the space says.
    """
    try:
        broken = rules.broken(point)
        if broken:
            return Outcome(status="illegal", reason=broken)
        outcome = space.evaluate(point)
    except Exception as error:
        text = str(error).partition("\n")[0][:200]
        return Outcome(status="error", reason=f"{type(error).__name__}: {text}")
    if outcome.status == "ok" and (outcome.value is None or not math.isfinite(outcome.value)):
        return Outcome(status="error", reason=f"{space.objective} is {outcome.value}", name=outcome.name)
    return outcome
