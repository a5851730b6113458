"""The fields that say what a launch script is started with, which its text does not say."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.fields.field import ask
from meshwright.fields.kinds import PAIRS, Texts
from meshwright.fields.request import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFields:
    """Positional arguments and environment of a launch script."""

    arguments: tuple[str, ...] = ask(
        "Positional argument of the script ($1, $2, ...). Repeatable.", Texts(metavar="VALUE"), option="--arg"
    )
    environment: tuple[str, ...] = ask(
        "Environment variable of the script. Repeatable.",
        Texts(metavar="NAME=VALUE", annotation=PAIRS),
        option="--env",
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
