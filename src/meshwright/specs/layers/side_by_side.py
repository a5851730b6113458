"""Several mixers that read one input: a part of a layer that mixes tokens is one mixer, or several side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from meshwright.specs.check import ByKind, Check
from meshwright.specs.layers import SINGLE_MIXERS
from meshwright.specs.layers.base import LayerContext, Mixer, PartWork


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide(Mixer):
    """Several mixers that read the same input and whose outputs are added: attention and Mamba-2 for example.

    Source: Falcon-H1, arXiv 2507.22448, section 2.1.
    """

    kind: Literal["side-by-side"] = "side-by-side"
    mixers: tuple[Annotated[Mixer, ByKind(SINGLE_MIXERS)], ...]

    def __post_init__(self) -> None:
        check = Check("mixers side by side")
        check.that(len(self.mixers) > 1, "mixers", len(self.mixers), "must hold at least two mixers")
        check.that(not any(mixer.absent for mixer in self.mixers), "mixers", "none", "must all be there")
        check.done()

    @property
    def each(self) -> tuple[Mixer, ...]:
        """All."""
        return self.mixers

    @property
    def heads(self) -> int:
        """Heads of the first mixer."""
        return self.mixers[0].heads

    @property
    def divided(self) -> tuple[tuple[str, int], ...]:
        """Units that all mixers divide among tensor ranks."""
        return tuple(dict.fromkeys(units for mixer in self.mixers for units in mixer.divided))

    @property
    def replicated(self) -> tuple[tuple[str, int], ...]:
        """Units of all mixers that tensor ranks may replicate."""
        return tuple(dict.fromkeys(units for mixer in self.mixers for units in mixer.replicated))

    def state_bytes(self, seq_len: int, element_bytes: float = 2.0) -> float:
        """State of all mixers; arguments as `Mixer.state_bytes`."""
        return sum(mixer.state_bytes(seq_len, element_bytes) for mixer in self.mixers)

    def parameters(self, hidden: int) -> int:
        """Parameters of all mixers."""
        return sum(mixer.parameters(hidden) for mixer in self.mixers)

    def describe(self) -> dict[str, object]:
        """Each under its kind."""
        return {mixer.kind: mixer.describe() for mixer in self.mixers}

    def work(self, context: LayerContext) -> PartWork:
        """One after the other; their input is kept once."""
        works = [mixer.work(context) for mixer in self.mixers]
        first, *others = works
        kept = (*first.kept, *(one for work in others for one in work.kept[1:]))
        return PartWork(ops=tuple(op for work in works for op in work.ops), kept=kept)
