"""Gradients made small before replicas sum them: what crosses the network, what is kept, what it takes.

A compression is lossy: what it leaves out is kept as an error and added to the next gradient (error feedback), so that
a rank holds one more element for every parameter. It changes what is trained, so that a plan has to state it; the
search never chooses one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from meshwright.errors import nearest
from meshwright.shapes import Float

Array = Float[np.ndarray, "..."] | float


class Compression(ABC):
    """One way, known by its name in the catalogue."""

    name: ClassVar[str]
    setting: ClassVar[str]
    """What the number behind the name is."""
    usual: ClassVar[int]
    """The number where none is written."""
    most: ClassVar[int]
    """Largest number."""
    exchange: ClassVar[Literal["sum", "gather"]]
    """Whether ranks sum what they send, or give it to each other."""
    hides: ClassVar[bool]
    """Whether it may start before the last gradient is there."""
    rounds: ClassVar[int] = 1
    """Exchanges that wait for each other."""
    error_bytes: ClassVar[float] = 4.0
    """Bytes of every parameter for what was left out so far."""
    touched_bytes: ClassVar[float]
    """Device memory read and written for a parameter, to make it small and large again."""
    optimizer: ClassVar[str] = ""
    """The one optimizer it goes with; empty for any."""

    @abstractmethod
    def payload_bytes(self, rows: Array, columns: Array, setting: int, element_bytes: float) -> Array:
        """Bytes that a rank sends of one matrix; ranks sum or gather them.

        Args:
            rows: the rows of the matrix, on this rank.
            columns: the columns of the matrix, on this rank.
            setting: the number behind the name.
            element_bytes: the element bytes of a gradient as it is.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A compression and its setting."""

    kind: Compression
    setting: int


def chosen(word: str) -> Chosen | None:
    """What a plan states; None for a word that is none.

    Args:
        word: such as `powersgd4`, or a name alone.
    """
    from meshwright.strategies import COMPRESSIONS

    match = re.fullmatch(r"([a-z]+)([0-9]*)", word)
    if match is None or match[1] not in COMPRESSIONS:
        return None
    kind = COMPRESSIONS[match[1]]
    return Chosen(kind=kind, setting=int(match[2] or kind.usual))


def nearest_words(word: str) -> str:
    """Compressions that a word may have meant, as a plan writes them.

    Args:
        word: the word that is none.
    """
    from meshwright.strategies import COMPRESSIONS

    close = nearest(re.sub(r"[0-9]", "", word), tuple(COMPRESSIONS)) or tuple(COMPRESSIONS)
    return " or ".join(f"gc-{name}{COMPRESSIONS[name].usual or ''}" for name in close)
