"""Exchanges of tokens with their experts that carry a token once: to a domain, and inside it once to a rank.

A token visits k experts. A plain all-to-all (`collectives.all_to_all_s`) sends k copies, wherever they go. Dispatchers
such as DeepEP and HybridEP send one copy to every domain with an expert of the token, over the sender's own rail, and
hand it on inside to every rank with one; what experts give back is summed on the same way home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.kernels.algorithms import Seconds
from meshwright.kernels.lines import LevelRates
from meshwright.shapes import Column

# Bandwidth that these kernels reach over the achieved one of the level's collectives: 8 H100 dispatch 4096 tokens of
# width 7168 in fp8 in 491 us and combine them in bf16 in 960 us (283 of 360 GB/s); 8 H800 at 134 of 160 GB/s, 64 at
# 45 of 46 GB/s between nodes. Source: measured kernels of ai-dynamo/aiconfigurator (2026-08); README of
# deepseek-ai/DeepEP, 2025-02, whose figures count what stays on the rank, or in the node, too.
INSIDE_SHARE = 0.8
BETWEEN_SHARE = 0.97
# Counts, layout and start of one exchange: inside a domain, and more where it leaves it. Same sources, at 128 tokens.
INSIDE_LATENCY_S = 40e-6
BETWEEN_LATENCY_S = 60e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How the router spreads the experts of a token."""

    copies: float
    """Experts that a token visits."""
    groups: int = 0
    """Equal groups of experts of which the router first chooses some; 0 for none."""
    chosen: int = 0
    """Groups among which the experts of a token lie."""

    def entered(self, parts: Column) -> Seconds:
        """Parts, of so many equal ones that hold the experts, in which a token finds some of its own.

        k experts at random among R parts are in R (1 - (1 - 1/R)^k) of them. R is all of them; with a choice of L of G
        groups those that L groups cover: L M / G of M >= G parts, M (1 - (1 - 1/M)^L) of fewer.

        Args:
            parts: domains, or ranks; per row.

        Source: group-limited routing: DeepSeek-AI, DeepSeek-V2 (arXiv 2405.04434), section 2.2.2, at most 3 devices;
        DeepSeek-V3 (arXiv 2412.19437), section 2.1.2, at most 4 nodes.
        """
        reached = np.asarray(parts, dtype=float)
        if self.groups:
            few = reached * (1 - (1 - 1 / reached) ** self.chosen)
            reached = np.maximum(np.where(reached >= self.groups, reached * self.chosen / self.groups, few), 1.0)
        found: Seconds = reached * (1 - (1 - 1 / reached) ** self.copies)
        return found


def token_exchange_s(
    payload_bytes: Column, *, inside: Sequence[Column], rates: Sequence[LevelRates], routing: Routing
) -> Seconds:
    """Seconds of a dispatch, or of a combine, that carries a token once to a domain and once to a rank.

    Of a token's k copies, e_1 ranks take one, and e_2, e_3 ... domains. A level with h members of the group in its
    domain and g in the domain below passes e / k (1 - g / h) of the bytes of all copies, e of the ranks or domains it
    joins; levels work side by side, so the slowest counts: max over levels of e / k (1 - g/h) S / B, and the latency.

    Args:
        payload_bytes: the payload bytes of all k copies of a rank's tokens, its own share included; per row.
        inside: members of the group inside one domain, per level (`lines.group_span`).
        rates: links, per level.
        routing: experts of a token.

    Returns:
        Seconds, per row; 0 for no bytes.

    Source: DeepSeek-AI, DeepSeek-V3 technical report (arXiv 2412.19437), 2024-12, section 3.2.2; deepseek-ai/DeepEP.
    """
    slowest: Seconds = 0.0
    latency_s: Seconds = INSIDE_LATENCY_S
    ranks = np.asarray(inside[-1], dtype=float)
    for depth, (below, here, level) in enumerate(zip((1, *inside), inside, rates, strict=False)):
        crossed = np.greater(here, below)
        once = routing.entered(ranks / below) / routing.copies
        share = INSIDE_SHARE if depth == 0 else BETWEEN_SHARE
        s_per_byte = once * (1 - below / here) / (level.reached_bytes_per_s(here - below) * share)
        slowest = np.maximum(slowest, crossed * s_per_byte)
        latency_s = latency_s + (BETWEEN_LATENCY_S * crossed if depth else 0.0)
    found: Seconds = np.greater(payload_bytes, 0) * np.greater(ranks, 1) * (latency_s + slowest * payload_bytes)
    return found
