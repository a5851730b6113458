"""One field of a request, and how requests declare theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from meshwright.fields.kinds import FieldKind, Flag, Texts

ASKED, GROUP, SETTINGS = "asked", "group", "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One thing that may be asked, as the command line and Python spell it."""

    name: str = ""
    """Name in Python; taken from the attribute it is declared as."""
    help: str | Callable[[], str] = ""
    """One sentence; a function where a catalogue says it."""
    kind: FieldKind = FieldKind()
    default: Any = None
    usual: str = ""
    """What holds where it is not given, in words."""
    option: str = ""
    """Name on the command line; made of the Python name unless it is given."""
    short: str = ""
    """One-letter option."""
    metavar: str = ""
    required: str | None = None
    """How to say it, where it must be given; None where it need not."""
    argument: bool = False
    """A positional argument of the command line, called by its metavar."""
    words: bool = False
    """A positional argument that may be repeated."""
    rare: bool = False
    """Described by `--help-all` alone; `--help` names it."""
    cli: bool = True
    python: bool = True
    annotation: str = ""
    """Type of the Python argument, where it is not its kind's."""

    @property
    def spelled(self) -> str:
        """How the command line calls it."""
        if self.argument:
            return self.placeholder
        return self.option or f"--{self.name.replace('_', '-')}"

    @property
    def placeholder(self) -> str:
        """What stands for its value in help."""
        return self.metavar or self.kind.metavar

    @property
    def flag(self) -> bool:
        """Whether it takes no value."""
        return isinstance(self.kind, Flag)

    @property
    def repeated(self) -> bool:
        """Whether it may be given several times."""
        return self.words or (isinstance(self.kind, Texts) and self.kind.repeated)

    @property
    def explained(self) -> str:
        """Help with the default."""
        text = self.help if isinstance(self.help, str) else self.help()
        return f"{text}  [default: {self.usual}]" if self.usual else text


def ask(help_text: str | Callable[[], str], kind: FieldKind = FieldKind(), **how: Any) -> Any:
    """Declare a field of a request.

    Args:
        help_text: one sentence, or what makes it of a catalogue when help is asked for.
        kind: how its value is read.
        how: other fields of `Field`.
    """
    default = how.pop("default", False if isinstance(kind, Flag) else () if isinstance(kind, Texts) else None)
    one = Field(help=help_text, kind=kind, default=default, **how)
    return dataclasses.field(default=default, metadata={ASKED: one})


def group(kind: type[Any], *, without: tuple[str, ...] = (), **changed: dict[str, Any]) -> Any:
    """Declare that a request holds a record of fields that several requests share.

    Args:
        kind: the record.
        without: names of its fields that this request does not ask for.
        changed: what differs here from the record's own declaration, by name of the field.
    """
    return dataclasses.field(default_factory=kind, metadata={GROUP: (frozenset(without), changed)})


def settings(source: Callable[[], tuple[Field, ...]]) -> Any:
    """Declare that a request holds, by name, the values given of fields that plug-ins declare.

    Args:
        source: says the fields when they are needed.
    """
    return dataclasses.field(default_factory=dict, metadata={SETTINGS: source})


@cache
def declared(attribute: dataclasses.Field[Any]) -> Field | None:
    """The field that an attribute of a record declares, if it does."""
    one = attribute.metadata.get(ASKED)
    return None if one is None else dataclasses.replace(one, name=attribute.name)


def values_of(record: Any) -> dict[str, Any]:
    """The attributes of a record by name."""
    return {attribute.name: getattr(record, attribute.name) for attribute in dataclasses.fields(record)}
