"""Which tokens of a sequence each context rank holds, so that a causal mask gives all ranks as much to do.

    layout    rank r of C holds                 of an earlier rank it sees    of a later one
    zigzag    pieces r and 2C - 1 - r of 2C     the first of its two pieces   both, with its own second piece alone
    striped   tokens r, r + C, r + 2C, ...      those up to its own           likewise

Source: NVIDIA Megatron-LM, `get_batch_on_this_cp_rank`; Brandon et al. 2023 (Striped Attention, arXiv 2311.09431).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """A way to deal the tokens of a sequence to ranks."""

    pieces: int
    """Runs of tokens of a rank, each seen whole or not at all by those of other ranks; 1 where none is."""
    dealt: Callable[[int, int], Int[np.ndarray, "tokens"]]

    def places(self, tokens: int, ranks: int) -> Int[np.ndarray, "ranks pieces tokens"]:
        """Place in the sequence of each token, as ranks hold them.

        Args:
            tokens: the number of tokens of the sequence.
            ranks: the ranks that share them; ranks x pieces divides the tokens.
        """
        return self.dealt(tokens, ranks).reshape(ranks, self.pieces, -1)


def _zigzag(tokens: int, ranks: int) -> Int[np.ndarray, "tokens"]:
    pieces = np.arange(tokens).reshape(2 * ranks, -1)
    return pieces[[piece for rank in range(ranks) for piece in (rank, 2 * ranks - 1 - rank)]].ravel()


def _striped(tokens: int, ranks: int) -> Int[np.ndarray, "tokens"]:
    return np.arange(tokens).reshape(-1, ranks).T.ravel()


LAYOUTS: dict[str, TokenLayout] = {
    "zigzag": TokenLayout(pieces=2, dealt=_zigzag),
    "striped": TokenLayout(pieces=1, dealt=_striped),
}
"""Layouts by their name in `ContextStrategy.layout`."""
