"""Models by name."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError, MeshwrightError
from meshwright.zoo.catalogue import NAMES, model_of, spec_named


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_model_with_data(name: str) -> None:
    model = model_of(spec_named(name), seq_len=8)
    one, again, other = (model.batch(step, 4) for step in (0, 0, 1))
    for key, leaf in one.items():
        assert leaf.shape[0] == 4
        assert (leaf == again[key]).all()
        assert (leaf != other[key]).any()
    assert model.num_layers >= 4


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("gpt-tinny", {}, "did you mean gpt-tiny"),
        ("llama-3.1-8b", {}, "8.0 billion"),
        ("gpt-tiny", {"layers": 5}, "--layers 4 or fewer"),
        ("gpt-tiny", {"layers": 0, "vocab": 0}, "vocab = 0"),
        ("mlp-tiny", {"vocab": 3}, "no vocabulary"),
    ],
)
def test_what_cannot_be_is_refused(name: str, sizes: dict[str, int], words: str) -> None:
    with pytest.raises(MeshwrightError) as caught:
        spec_named(name, **sizes)
    assert words in str(caught.value)


def test_sizes_of_the_perceptron() -> None:
    model = model_of(None, seq_len=8, layers=3, hidden=4)
    assert (model.num_layers, model.batch(0, 2)["x"].shape) == (3, (2, 4))


def test_several_wrong_sizes_are_said_together() -> None:
    with pytest.raises(InputError) as caught:
        spec_named("gpt-tiny", layers=0, hidden=0)
    assert len(caught.value.problems) == 2
