"""One table of axes: options, grid and the page that explains the search say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import InputError
from meshwright.library.models import resolve
from meshwright.planning.axes import space_of
from meshwright.search.axes import AXES, recompute_words
from meshwright.specs import ModelSpec, Workload
from tests.estimate.cases import DENSE, MIXED

PAGE = Path(__file__).parents[2] / "docs" / "how-the-model-works.md"
WORKLOAD = Workload(seq_len=4096, global_batch=64)


@pytest.mark.parametrize("name", AXES)
def test_the_page_says_what_a_search_goes_through(name: str) -> None:
    assert f"| `{name}` | {AXES[name].default} |" in PAGE.read_text()


def model_of(axis: str) -> ModelSpec:
    """One that takes every value of an axis: ways to experts need some, grids and halves of tensor ranks none."""
    return DENSE if axis in ("tensor", "tp_overlap") else MIXED


@pytest.mark.parametrize(("name", "word"), [(axis.name, word) for axis in AXES.values() for word in axis.values()])
def test_every_word_of_an_axis_can_be_pinned(name: str, word: str) -> None:
    assert space_of(model_of(name), WORKLOAD, 16, pin=f"{name}={word}").pinned(name) == (word,)


@pytest.mark.parametrize("axis", AXES.values(), ids=list(AXES))
def test_tokens_of_plans_pin_their_axis(axis: object) -> None:
    assert axis is AXES[axis.name]
    for word in AXES[axis.name].values():
        token = axis.token(word) if axis.token else ""
        if token:
            found = space_of(model_of(axis.name), WORKLOAD, 16, pin=token)
            assert found.pins == ((axis.name, (word,)),)


@pytest.mark.parametrize(
    ("model", "kernel", "word"),
    [
        ("llama-3-8b", "flash", "sel"),
        ("mixtral-8x7b", "flash", "sel-moe_act"),
        ("deepseek-v3", "flash", "sel-layernorm-mla_up_proj-mlp-moe_act"),
        ("deepseek-v3", "materialised", "sel"),  # scores are the most of what is kept
    ],
)
def test_selective_recompute_repeats_what_the_model_has(model: str, kernel: Any, word: str) -> None:
    workload = Workload(seq_len=4096, global_batch=64, attention_kernel=kernel)
    assert recompute_words(resolve(model), workload) == ("none", word, "block", "full")


def test_modules_can_be_pinned_by_word_and_by_token() -> None:
    assert space_of(DENSE, WORKLOAD, 16, pin="recompute=sel-mlp-layernorm").pinned("recompute") == (
        "sel-mlp-layernorm",
    )
    assert space_of(DENSE, WORKLOAD, 16, pin="rc-sel-mlp").pinned("recompute") == ("sel-mlp",)
    with pytest.raises(InputError, match="recompute is one of"):
        space_of(DENSE, WORKLOAD, 16, pin="recompute=sel-nothing")
