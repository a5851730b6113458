"""How tuners look, whatever the space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.fields.field import ask
from meshwright.fields.kinds import Flag, Kind, OutputFile, Texts, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFields:
    """How tuners look."""

    tuners: tuple[str, ...] = ask(
        "random, optuna, smac or ray-tune; optuna:gp, ray-tune:optuna+asha. Repeatable to compare.",
        Texts(metavar="TUNER"),
        option="--with",
        usual="random; all installed to compare",
    )
    trials: int = ask("Trials of a study.", Whole(high=10**7), default=100, usual="100")
    storage: str | None = ask("Keep trials in sqlite:///trials.db.", Kind(metavar="FILE"))
    resume: bool = ask("Go on with what the storage holds.", Flag())
    compare: bool = ask("Several tuners with the same budget.", Flag())
    seed: int = ask("Of the first study.", Whole(low=0), default=0, usual="0")
    repeats: int = ask("Studies of each tuner to compare.", Whole(high=1000), default=1, usual="1")
    workers: int = ask("Trials at a time, with ray-tune.", Whole(high=1024), default=1, usual="1")
    figure: Any = ask("Write regret per trial and second as SVG.", OutputFile(), python=False)
    optimum: bool = ask("Do not search the space exactly first.", Flag(), default=True, option="--no-optimum")
