"""How tuners look, whatever the space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.fields.field import ask
from meshwright.fields.kinds import FieldKind, Flag, OutputFile, Texts, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFields:
    """How tuners look."""

    tuners: tuple[str, ...] = ask(
        "random, optuna, smac or ray-tune; optuna:gp, ray-tune:optuna+asha. Repeatable to compare.",
        Texts(metavar="TUNER"),
        option="--with",
        usual="random; all installed to compare",
    )
    trials: int = ask("Trials per study.", Whole(high=10**7), default=100, usual="100")
    storage: str | None = ask("Keep trials in sqlite:///trials.db.", FieldKind(metavar="FILE"))
    resume: bool = ask("Continue the study in the storage.", Flag())
    compare: bool = ask("Compare several tuners under the same budget.", Flag())
    seed: int = ask("Seed of the first study.", Whole(low=0), default=0, usual="0")
    repeats: int = ask("Studies per tuner.", Whole(high=1000), default=1, usual="1")
    workers: int = ask("Concurrent trials of ray-tune.", Whole(high=1024), default=1, usual="1")
    figure: Any = ask("Write regret over trials and over seconds as an SVG figure.", OutputFile(), python=False)
    optimum: bool = ask(
        "Skip the exact search that finds the optimum to compare with.", Flag(), default=True, option="--no-optimum"
    )
