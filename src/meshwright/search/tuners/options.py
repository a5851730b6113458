"""How to tune, whatever the space: which tuners, how many trials, where rows are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.fields.check import InputCheck
from meshwright.fields.study import StudyFields
from meshwright.search.tuners.run import TUNERS, tuner_named
from meshwright.search.tuners.store import storage_path


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenOptions:
    """A tuner as the user says it: `optuna`, `optuna:gp`, `ray-tune:optuna+asha`."""

    label: str
    tuner: str
    algorithm: str | None
    scheduler: str | None

    @classmethod
    def of(cls, text: str) -> ChosenOptions:
        """Read `NAME[:ALGORITHM][+SCHEDULER]`."""
        front, _, scheduler = text.strip().partition("+")
        name, _, algorithm = front.partition(":")
        return cls(label=text.strip(), tuner=name, algorithm=algorithm or None, scheduler=scheduler or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """How to tune, whatever the space."""

    tuners: tuple[ChosenOptions, ...]
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
    check = InputCheck()
    chosen, left_out = _chosen(study)
    for one in chosen:
        check.attempt(lambda one=one: tuner_named(one.tuner, one.algorithm, one.scheduler))  # type: ignore[misc]
    for conflict in _conflicts(study, len(chosen)):
        check.problem(*conflict)
    if study.storage is not None:
        check.attempt(lambda: storage_path(study.storage or ""))
    check.done()
    return TuneOptions(
        tuners=chosen,
        trials=study.trials,
        seeds=tuple(range(study.seed, study.seed + study.repeats)),
        storage=study.storage,
        resume=study.resume,
        workers=study.workers,
        compare=study.compare,
        optimum=study.optimum,
        left_out=left_out,
    )


def _chosen(study: StudyFields) -> tuple[tuple[ChosenOptions, ...], tuple[tuple[str, str], ...]]:
    """The tuners, and those that a comparison of all leaves out."""
    named = tuple(ChosenOptions.of(part) for text in study.tuners for part in text.split(",") if part.strip())
    if named or not study.compare:
        return named or (ChosenOptions.of("random"),), ()
    installed = tuple(ChosenOptions.of(name) for name, tuner in TUNERS.items() if tuner.installed)
    missing = {name: tuner.extra for name, tuner in TUNERS.items() if not tuner.installed}
    left_out = tuple((name, f"not installed: pip install 'meshwright[{extra}]'") for name, extra in missing.items())
    return installed or (ChosenOptions.of("random"),), left_out


def _conflicts(study: StudyFields, tuners: int) -> Iterator[tuple[str, str, str, str]]:
    """What does not go together: what, why, fix and option."""
    if tuners > 1 and not study.compare:
        yield f"{tuners} tuners", "one study has one tuner", "compare them with --compare, or keep one", "--with"
    if study.repeats > 1 and not study.compare:
        yield f"--repeats is {study.repeats}", "one study has one seed", "compare with --compare", "--repeats"
    if study.compare and not study.optimum:
        yield (
            "--compare without the optimum",
            "it compares regret, which needs the optimum",
            "drop --no-optimum",
            "--compare",
        )
    if study.resume and study.storage is None:
        fix = "name the file with --storage sqlite:///trials.db"
        yield "--resume without --storage", "there is no study to continue", fix, "--resume"
