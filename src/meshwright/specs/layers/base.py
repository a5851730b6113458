"""What a kind of layer declares: parameters, operators, and what ranks can share out.

A layer is a mixer (tokens see each other: attention) and a feed-forward part (each token by itself), each one of the
kinds in the tables of this package. A new kind is a file here and a name in its table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from meshwright.specs.operators import Kept, Op, StreamTokens

AttentionKernel = Literal["flash", "materialised"]
"""`flash` keeps no scores and computes only attended pairs; `materialised` keeps and computes the square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """What a part of a layer needs to know of its surroundings."""

    hidden: int
    """Width of the residual stream."""
    kernel: AttentionKernel
    dropout: bool
    memory: StreamTokens | None = None
    """Tokens that cross attention reads; None for a layer without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWork:
    """Operators of a part, norms and residual addition not included."""

    ops: tuple[Op, ...]
    """The operators in forward order."""
    kept: tuple[Kept, ...]
    """Tensors kept for the backward pass, the input of the norm not included."""


class LayerPart(ABC):
    """A mixer or a feed-forward part."""

    __slots__ = ()

    if TYPE_CHECKING:  # fields of the kinds, which a property here would stand for as their default

        @property
        def kind(self) -> str:
            """Name in the table of kinds."""

    @abstractmethod
    def parameters(self, hidden: int) -> int:
        """Weights and biases at a width of the residual stream."""

    def active_parameters(self, hidden: int) -> int:
        """Parameters that one token visits."""
        return self.parameters(hidden)

    @property
    def absent(self) -> bool:
        """Whether a layer does without this part."""
        return False

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Sizes of the part by name, for people and files."""

    @abstractmethod
    def work(self, context: LayerContext) -> PartWork:
        """Operators and what they keep."""


class Mixer(LayerPart):
    """Tokens see each other. Every mixer has `heads`, the units that tensor ranks and all-to-alls share out."""

    __slots__ = ()
    units: ClassVar[str] = "attention heads"
    """What its `heads` are called."""
    recurrent: ClassVar[bool] = False
    """Whether tokens see earlier ones through a state of fixed size."""

    if TYPE_CHECKING:  # likewise

        @property
        def heads(self) -> int:
            """Units that ranks share out."""

    @property
    def each(self) -> tuple[Mixer, ...]:
        """Itself, or those that stand side by side."""
        return (self,)

    @property
    def reads(self) -> str:
        """The stream whose tokens are its keys and values; empty for that of its queries."""
        return ""

    @property
    def shared_kv_heads(self) -> int:
        """Key-value heads that several query heads share, which tensor ranks divide or replicate; 0 if none do."""
        return 0

    @property
    def divided(self) -> tuple[tuple[str, int], ...]:
        """Units by name, all of which tensor ranks share out evenly."""
        return ((self.units, self.heads),)

    @property
    def replicated(self) -> tuple[tuple[str, int], ...]:
        """Units by name that tensor ranks share out evenly, or hold several times."""
        return (("key-value heads", self.shared_kv_heads),) if self.shared_kv_heads else ()

    def state_bytes(self, seq_len: int, element_bytes: float = 2.0) -> float:
        """What one sequence leaves behind for its next token: cached keys and values, or a state of fixed size.

        Args:
            seq_len: tokens seen.
            element_bytes: the element bytes of cached keys and values; states of recurrences take 4.
        """
        return 0.0


class FeedForward(LayerPart):
    """Each token by itself."""

    __slots__ = ()

    @property
    def input_width(self) -> int:
        """Width of inputs that the layer has of its own beside the residual stream; 0 for none."""
        return 0

    @property
    def tensor_width(self) -> int:
        """Hidden width that tensor ranks divide; 0 if they divide none."""
        return 0

    @property
    def routed_experts(self) -> int:
        """Experts among which tokens are routed; 0 for a dense part."""
        return 0

    @property
    def visited_experts(self) -> float:
        """Routed experts that a token visits, on average where some choices compute nothing."""
        return 0

    @property
    def router_groups(self) -> tuple[int, int]:
        """Groups of experts, and those of them in which a token has any; zeros where the router knows no groups."""
        return 0, 0

    @property
    def expert_width(self) -> int:
        """Hidden width of a routed expert, which expert-tensor ranks divide."""
        return 0

    def expert_parameters(self, hidden: int) -> int:
        """Weights and biases of one routed expert."""
        return 0
