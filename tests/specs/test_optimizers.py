"""Optimizers: bytes of their states and FLOP of their updates, on a matrix small enough to count by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.specs.optimizers import OPTIMIZERS, optimizer_named
from meshwright.specs.optimizers.base import Matrix
from meshwright.specs.precision import PRECISIONS, precision, stated
from meshwright.specs.workload import Workload

WIDE = Matrix(rows=1000, columns=3000, whole_rows=1000, whole_columns=3000)
ELEMENTS = 3_000_000


def flop(text: str, matrix: Matrix = WIDE) -> float:
    """Of the products of one update."""
    return sum(2.0 * p.times * p.m * p.n * p.k for p in optimizer_named(text).products(matrix))


@pytest.mark.parametrize(
    ("name", "each", "matrix"),
    [
        ("adam", 8, 8 * ELEMENTS),
        ("adamw", 8, 8 * ELEMENTS),
        ("sgd", 0, 0),
        ("sgd-momentum", 4, 4 * ELEMENTS),
        ("lion", 4, 4 * ELEMENTS),
        ("adam-mini", 4, 4 * ELEMENTS),
        ("muon", 8, 4 * ELEMENTS),
        ("adamw-8bit", 2.03125, 2.03125 * ELEMENTS),
        ("paged-adamw-8bit", 2.03125, 2.03125 * ELEMENTS),
        ("adafactor", 4, 4 * 4000),
        ("galore:rank=100", 8, 4 * 100 * (2 * 3000 + 1000)),
        ("shampoo", 8, 8 * ELEMENTS + 8 * (1000**2 + 3000**2)),
        ("shampoo:block=500", 8, 8 * ELEMENTS + 12 * 8 * 2 * 500**2),
        ("kfac", 8, 8 * ELEMENTS + 8 * (1000**2 + 3000**2)),
        ("soap", 8, 8 * ELEMENTS + 8 * (1000**2 + 3000**2)),
        ("soap:largest=2000", 8, 8 * ELEMENTS + 8 * 1000**2),
    ],
)
def test_states_have_the_bytes_of_the_papers(name: str, each: float, matrix: float) -> None:
    """Per vector element and per 1000 x 3000 matrix with fp32 moments."""
    kind = optimizer_named(name)
    assert kind.each_bytes(4.0) == each
    assert np.asarray(kind.matrix_bytes(WIDE, 4.0)) == pytest.approx(matrix)
    assert kind.least_bytes(4.0) * ELEMENTS <= matrix


def test_lookup_tables_of_8_bit_adam_stay_in_fp32() -> None:
    assert optimizer_named("adamw-8bit").table_bytes(4.0) == 8


def test_newton_schulz_takes_two_thin_products_and_a_square_one() -> None:
    """5 x 2 (2 n m^2 + m^3) FLOP, of the whole matrix, whichever side is longer."""
    expected = 5 * 2 * (2 * 3000 * 1000**2 + 1000**3)
    assert flop("muon") == expected
    assert flop("muon", Matrix(rows=3000, columns=250, whole_rows=3000, whole_columns=1000)) == expected
    assert flop("muon:steps=10") == 2 * expected


def test_preconditioners_multiply_both_sides() -> None:
    """Shampoo: statistics and application, 4 r c (r + c); SOAP projects twice more, and iterates now and then."""
    r, c = 1000, 3000
    assert flop("shampoo") == 4 * r * c * (r + c)
    assert flop("soap:every=4") == 8 * r * c * (r + c) + 2 * (r**3 + c**3) / 4
    assert float(optimizer_named("shampoo:every=10").decomposition_flop(WIDE)) == pytest.approx(0.9 * (r**3 + c**3))


def test_kfac_multiplies_both_sides_and_takes_statistics_and_inverses_now_and_then() -> None:
    r, c, tokens = 1000, 3000, 500
    assert flop("kfac") == 2 * r * c * (r + c)
    kind = optimizer_named("kfac:every=4")
    aside = (*kind.statistics(WIDE, tokens), *kind.refresh(WIDE))
    expected = 2 * tokens * (r**2 + c**2) + r**3 + c**3
    assert sum(2.0 * p.times * p.m * p.n * p.k for p in aside) == expected / 4


def test_galore_projects_into_a_low_rank_and_out_of_it() -> None:
    assert flop("galore:rank=64") == 2 * 2 * 64 * ELEMENTS
    assert float(optimizer_named("galore:every=1").decomposition_flop(WIDE)) == 6 * 3000 * 1e6 + 20 * 1e9


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_says_what_it_is_and_where_that_stands(name: str) -> None:
    kind = optimizer_named(name)
    assert kind.summary
    assert kind.source
    assert kind.describe().startswith(name)


def test_settings_are_whole_numbers_of_the_optimizers_own() -> None:
    assert optimizer_named("galore:rank=16,every=50").describe() == "galore (rank 16, every 50)"
    assert optimizer_named("galore:layerwise=1").describe() == "galore (rank 128, every 200, layer by layer)"
    assert optimizer_named("adamw:layerwise=1") != optimizer_named("adamw")
    broken = (
        "galore:rank=0",
        "galore:rang=4",
        "adam:rank=4",
        "muon:steps=many",
        "adamw:layerwise=2",
        "adamw:layerwise=10",
        "kfac:layerwise=1",
    )
    for wrong in broken:
        with pytest.raises(InputError, match=r"settings of|each layer is updated"):
            optimizer_named(wrong)
    with pytest.raises(UnsupportedError, match="did you mean adafactor"):
        optimizer_named("adafacter")


def test_a_format_of_moments_beside_an_optimizer_that_has_its_own_is_refused() -> None:
    recipe = stated(precision("bf16"), {"moment_dtype": "bf16"})
    assert Workload(seq_len=1, global_batch=1, precision=recipe, optimizer="muon").update.name == "muon"
    with pytest.raises(InputError, match="says itself how it keeps its states"):
        Workload(seq_len=1, global_batch=1, precision=recipe, optimizer="adamw-8bit")


def test_the_docs_name_every_optimizer_and_every_recipe() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-the-model-works.md").read_text("utf-8")
    for name in (*OPTIMIZERS, *PRECISIONS):
        assert re.search(rf"`{name}[`:]", page), name


def test_names_of_frameworks_mean_the_same() -> None:
    assert optimizer_named("adamw_bnb_8bit") is optimizer_named("adamw_bnb_8bit")
    assert optimizer_named("paged_adamw_8bit") == optimizer_named("paged-adamw-8bit")
    assert optimizer_named("AdamW").name == "adamw"
    assert optimizer_named("galore_adamw:rank=8") == optimizer_named("galore:rank=8")
