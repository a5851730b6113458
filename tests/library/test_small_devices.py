"""Cards of desktops and laptops, and machines whose processors share one memory."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import MeshwrightError
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device

UNIFIED = ("GB10", "Strix-Halo", "M1-Max-64", "M2-Ultra-192", "M4-Max-128")


@pytest.mark.parametrize(
    ("name", "bf16_tflops"),
    [
        ("RTX 5080", 112.5),  # RTX Blackwell white paper, fp16 with fp32 accumulation
        ("RTX 5070 Ti", 87.9),
        ("RTX 4080", 97.5),  # Ada white paper
        ("RTX 3090 Ti", 80.0),  # Ampere GA102 white paper
        ("RTX 3080", 59.5),
        ("RTX PRO 6000", 503.8),
        ("A5000", 111.1),
    ],
)
def test_peaks_are_those_of_the_white_papers(name: str, bf16_tflops: float) -> None:
    assert (device(name).peak("bf16") or 0) / 1e12 == pytest.approx(bf16_tflops, rel=0.003)


@pytest.mark.parametrize("name", UNIFIED)
def test_one_memory_has_nothing_to_move_to(name: str) -> None:
    assert device(name).unified_memory
    with pytest.raises(MeshwrightError, match="share one memory"):
        mw.estimate("llama-3.2-1b", "dp1.mbs1.gbs4.off-o", gpus=f"1x{name}")


def test_cards_without_peer_copies_sum_at_half_the_rate_of_those_with_them() -> None:
    ours, peers = (resolve_gpus(f"8x{name}").groups[0].domains[0] for name in ("RTX-4090", "RTX-6000-Ada"))
    assert ours.bandwidth_bytes_per_s == peers.bandwidth_bytes_per_s
    assert ours.efficiency == pytest.approx(peers.efficiency / 2)
