"""How to tune, whatever the space: which tuners, how many trials, where rows are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.app.calculon_space import Check
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


def tune_options(
    *,
    tuners: str | Iterable[str] = (),
    trials: int = TRIALS,
    seed: int = 0,
    repeats: int = 1,
    storage: str | None = None,
    resume: bool = False,
    workers: int = 1,
    compare: bool = False,
    optimum: bool = True,
) -> TuneOptions:
    """Read and check how to tune.

    Args:
        tuners: `random`, `optuna`, `smac`, `ray-tune`, each with `:ALGORITHM` and `+SCHEDULER` as wanted; random alone
            or, to compare, all that are installed by default.
        trials: of each study in all.
        seed: of the first study of each tuner.
        repeats: studies of each tuner, with seeds one after another.
        storage: `sqlite:///trials.db`, where rows are kept.
        resume: go on with what the storage holds.
        workers: trials at a time, for tuners that can.
        compare: several tuners, with regret.
        optimum: find the exact optimum too.

    Raises:
        InputError: all problems together.
        UnsupportedError: only unknown tuners, or tuners that are not installed.
    """
    check = Check()
    texts = [tuners] if isinstance(tuners, str) else list(tuners)
    chosen = [Chosen.of(part) for text in texts for part in text.split(",") if part.strip()]
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
    for field, value, low, most in (
        ("--trials", trials, 1, MOST_TRIALS),
        ("--repeats", repeats, 1, 1000),
        ("--workers", workers, 1, 1024),
        ("--seed", seed, 0, 2**31 - 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= most:
            check.problem(
                f"{field} is {str(value)[:40]!r}", f"a whole number from {low} to {most:,}", f"say {field} 10", field
            )
    if len(chosen) > 1 and not compare:
        check.problem(
            f"{len(chosen)} tuners", "one study has one tuner", "compare them with --compare, or keep one", "--with"
        )
    if repeats > 1 and not compare:
        check.problem(f"--repeats is {repeats}", "one study has one seed", "compare with --compare", "--repeats")
    if compare and not optimum:
        check.problem("--compare without the optimum", "regret is what it compares", "drop --no-optimum", "--compare")
    if resume and storage is None:
        fix = "name the file with --storage sqlite:///trials.db"
        check.problem("--resume without --storage", "there is nothing to go on with", fix, "--resume")
    if storage is not None:
        check.attempt(lambda: storage_path(storage))
    check.done()
    return TuneOptions(
        tuners=tuple(chosen),
        trials=trials,
        seeds=tuple(range(seed, seed + repeats)),
        storage=storage,
        resume=resume,
        workers=workers,
        compare=compare,
        optimum=optimum,
        left_out=tuple(left_out),
    )
