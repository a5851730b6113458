"""What of a model is trained: records that cannot be wrong, and bytes of stored weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import InputError
from meshwright.library.models import spec
from meshwright.specs.model import TunedLayer
from meshwright.specs.tuning import STORED_BYTES, Frozen, Lora, Tuning


def test_double_quantisation_saves_0_373_bits_of_a_weight() -> None:
    """Dettmers et al. 2023, section 3: scales take 0.5 bits per weight, and 0.127 when they are quantised."""
    bits = {name: 8 * size for name, size in STORED_BYTES.items()}
    assert bits["nf4-single"] == 4.5
    assert bits["nf4"] == pytest.approx(4.127, abs=5e-4)
    assert bits["nf4-single"] - bits["nf4"] == pytest.approx(0.373, abs=1e-3)


def test_a_model_says_of_each_layer_what_is_trained() -> None:
    model = replace(spec("llama-3.1-8b"), tuning=Tuning(frozen=(Frozen(part="layers", layers=(0, 9)),)))
    layers = list(model.layers())
    assert [isinstance(layer, TunedLayer) for layer in layers] == [True] * 10 + [False] * 22
    assert sum(model.kind_counts().values()) == model.num_layers
    assert model.parameters == spec("llama-3.1-8b").parameters


def test_no_gradient_reaches_a_layer_below_everything_trained() -> None:
    frozen = (Frozen(part="embedding"), Frozen(part="layers", layers=(0, 9)))
    model = replace(spec("llama-3.1-8b"), tuning=Tuning(frozen=frozen))
    assert [layer.tuning.reached for layer in model.layers() if isinstance(layer, TunedLayer)] == [False] * 10
    above = replace(model, tuning=Tuning(frozen=frozen[1:]))
    assert all(layer.tuning.reached for layer in above.layers() if isinstance(layer, TunedLayer))


def test_adapters_in_some_layers_leave_those_below_without_a_backward_pass() -> None:
    model = replace(spec("llama-3.1-8b"), tuning=Tuning(lora=Lora(rank=8, layers=((16, 31),))))
    reached = [layer.tuning.reached for layer in model.layers() if isinstance(layer, TunedLayer)]
    assert reached == [False] * 16 + [True] * 16


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Lora(rank=0), "rank"),
        (lambda: Lora(rank=8, targets=()), "targets"),
        (lambda: Lora(rank=8, base="nf5"), "base"),
        (lambda: Lora(rank=8, dropout=1.0), "dropout"),
        (lambda: Lora(rank=8, train=("brain",)), "train"),
        (lambda: Frozen(part="embedding", layers=(0, 3)), "layers"),
        (lambda: Tuning(), "frozen"),
        (lambda: Tuning(lora=Lora(rank=8), frozen=(Frozen(part="head"),)), "frozen"),
    ],
)
def test_records_refuse_what_cannot_be(make: object, field: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert field in {problem.field for problem in caught.value.problems}
