"""The fields that say what a launch script is started with, which its text does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.fields.field import ask
from meshwright.fields.kinds import PAIRS, FieldKind, Texts
from meshwright.fields.request import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOfScript(FieldKind):
    """The number of a job, from 1, or a name of it."""

    metavar: str = "N|NAME"
    annotation: str = "int | str"

    def read(self, name: str, value: Any) -> str:
        """The value as text."""
        number = isinstance(value, int) and not isinstance(value, bool)
        if (number and value < 1) or not (number or (isinstance(value, str) and value.strip())):
            raise self.wrong(
                name, value, "must be the number of a job, from 1, or a name of it", f"for example {name}=2"
            )
        return str(value).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFields:
    """Positional arguments and environment of a launch script, and which of its jobs is meant."""

    arguments: tuple[str, ...] = ask(
        "Positional argument of the script ($1, $2, ...). Repeatable.", Texts(metavar="VALUE"), option="--arg"
    )
    environment: tuple[str, ...] = ask(
        "Environment variable of the script. Repeatable.",
        Texts(metavar="NAME=VALUE", annotation=PAIRS),
        option="--env",
    )
    job: str | None = ask(
        "Job of a script that starts several: its number in the list of them, or a value that it alone has.",
        JobOfScript(),
    )

    def rules(self, reading: Reading) -> None:
        """A variable has a name and a value."""
        for text in self.environment:
            name, equals, _ = str(text).partition("=")
            if not equals or not name.isidentifier():
                shown = name[:40] if equals else "a text without ="
                reading.problem(
                    f"{reading.called('environment')} has {shown!r}", "it takes NAME=VALUE", "for example NNODES=4"
                )

    @property
    def variables(self) -> dict[str, str]:
        """The environment by name."""
        return dict(str(text).partition("=")[::2] for text in self.environment)
