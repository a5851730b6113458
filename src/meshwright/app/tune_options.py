"""How to tune, whatever the space: which tuners, how many trials, where rows are kept."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.calculon_space import Check
from meshwright.fields.study import StudyFields
from meshwright.search.tuners.run import TUNERS, tuner_named
from meshwright.search.tuners.store import storage_path

MOST_TRIALS = 10**6
TRIALS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A tuner as the user says it: `optuna`, `optuna:gp`, `ray-tune:optuna+asha`."""

    label: str
    tuner: str
    algorithm: str | None
    scheduler: str | None

    @classmethod
    def of(cls, text: str) -> Chosen:
        """Read `NAME[:ALGORITHM][+SCHEDULER]`."""
        front, _, scheduler = text.strip().partition("+")
        name, _, algorithm = front.partition(":")
        return cls(label=text.strip(), tuner=name, algorithm=algorithm or None, scheduler=scheduler or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """How to tune, whatever the space."""

    tuners: tuple[Chosen, ...]
    trials: int
    seeds: tuple[int, ...]
    storage: str | None
    resume: bool
    workers: int
    compare: bool
    optimum: bool
    left_out: tuple[tuple[str, str], ...]


def tune_options(study: StudyFields) -> TuneOptions:
    """Check how to tune.

    Args:
        study: tuners as `random`, `optuna`, `smac`, `ray-tune`, each with `:ALGORITHM` and `+SCHEDULER` as wanted;
            random alone or, to compare, all that are installed by default.

    Raises:
        InputError: all problems together.
        UnsupportedError: only unknown tuners, or tuners that are not installed.
    """
    check = Check()
    storage, compare = study.storage, study.compare
    chosen = [Chosen.of(part) for text in study.tuners for part in text.split(",") if part.strip()]
    left_out: list[tuple[str, str]] = []
    if not chosen and compare:
        chosen = [Chosen.of(name) for name, tuner in TUNERS.items() if tuner.installed]
        left_out = [
            (name, f"not installed: pip install 'meshwright[{tuner.extra}]'")
            for name, tuner in TUNERS.items()
            if not tuner.installed
        ]
    chosen = chosen or [Chosen.of("random")]
    for one in chosen:
        check.attempt(lambda one=one: tuner_named(one.tuner, one.algorithm, one.scheduler))  # type: ignore[misc]
    if len(chosen) > 1 and not compare:
        check.problem(
            f"{len(chosen)} tuners", "one study has one tuner", "compare them with --compare, or keep one", "--with"
        )
    if study.repeats > 1 and not compare:
        check.problem(f"--repeats is {study.repeats}", "one study has one seed", "compare with --compare", "--repeats")
    if compare and not study.optimum:
        check.problem("--compare without the optimum", "regret is what it compares", "drop --no-optimum", "--compare")
    if study.resume and storage is None:
        fix = "name the file with --storage sqlite:///trials.db"
        check.problem("--resume without --storage", "there is nothing to go on with", fix, "--resume")
    if storage is not None:
        check.attempt(lambda: storage_path(storage))
    check.done()
    return TuneOptions(
        tuners=tuple(chosen),
        trials=study.trials,
        seeds=tuple(range(study.seed, study.seed + study.repeats)),
        storage=storage,
        resume=study.resume,
        workers=study.workers,
        compare=compare,
        optimum=study.optimum,
        left_out=tuple(left_out),
    )
