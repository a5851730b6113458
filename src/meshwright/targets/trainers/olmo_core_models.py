"""Models of OLMo-core by the functions that make them: sizes of dense decoders, and those with experts.

Sizes are those of olmo_core/nn/transformer/config.py of OLMo-core 2.x (2026-06), https://github.com/allenai/OLMo-core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers.olmo_core_module import FACTORY, LENGTH, MODEL, SAME, WINDOW


class _Shape(NamedTuple):
    hidden: int
    layers: int
    heads: int
    width: int
    kv_heads: int = 0


_OLMO = {
    "14M": _Shape(128, 4, 8, 512),
    "30M": _Shape(256, 4, 8, 768),
    "60M": _Shape(384, 8, 8, 1536),
    "100M": _Shape(512, 12, 8, 2048),
    "190M": _Shape(768, 12, 12, 3072),
    "370M": _Shape(1024, 16, 16, 4096),
    "760M": _Shape(1536, 16, 16, 6144),
    "3B": _Shape(3328, 16, 16, 13_312),
    "7B": _Shape(4096, 32, 32, 11_008),
    "13B": _Shape(5120, 40, 40, 13_824),
    "32B": _Shape(5120, 64, 40, 27_648, 8),
}
_SHAPES: dict[str, tuple[str, _Shape]] = {
    **{f"olmo2_{size}": ("olmo2", shape) for size, shape in _OLMO.items()},
    **{f"olmo3_{size}": ("olmo3", shape) for size, shape in _OLMO.items()},
    "olmo2_1B": ("olmo2", _Shape(2048, 18, 16, 8192)),
    "olmo2_1B_v2": ("olmo2", _Shape(2048, 16, 16, 8192)),
    "olmo3_1B": ("olmo3", _Shape(2048, 16, 16, 8192)),
    "olmo2_600M": ("olmo2", _Shape(1344, 16, 16, 5376)),
    "olmo3_600M": ("olmo3", _Shape(1280, 16, 16, 5120)),
    "llama2_271M": ("llama", _Shape(1024, 16, 8, 2816)),
    "llama2_1B": ("llama", _Shape(2048, 18, 16, 5632)),
    "llama2_7B": ("llama", _OLMO["7B"]),
    "llama2_13B": ("llama", _OLMO["13B"]),
    "llama2_26B": ("llama", _Shape(5120, 80, 40, 13_824)),
    "llama2_70B": ("llama", _Shape(8192, 80, 64, 28_672, 8)),
    "llama3_1B": ("llama", _Shape(2048, 16, 32, 8192, 8)),
    "llama3_8B": ("llama", _Shape(4096, 32, 32, 14_336, 8)),
    "llama3_405B": ("llama", _Shape(16_384, 126, 128, 53_248, 8)),
}
"""Family of the transformers library and sizes by the name of the function that makes the model."""
_PLAIN = ("vocab_size", "n_layers", "n_heads", "n_kv_heads", FACTORY, WINDOW)


_MOE = "llama_like_moe"
_OLMOE = {"d_model": 2048, "n_layers": 16, "n_heads": 16, "num_experts": 64, "top_k": 8, "expert_hidden_size": 1024}
"""Arguments of `llama_like_moe` that make OLMoE-1B-7B."""
_SIZES = (*_OLMOE, "shared_expert_hidden_size", "vocab_size", FACTORY)
_CAPACITY = 1.2
"""Places of an expert over the tokens that it has on average, where nobody says it."""
_CHANGE_NOTHING = ("lb_loss_weight", "z_loss_weight", "reordered_norm", "qk_norm", "dropless", "capacity_factor")


def olmo_layers(reader: KeyReader) -> int:
    """Layers of the model; 1 where it is not known.

    Args:
        reader: the reader of the script.
    """
    made = reader.word(f"{MODEL}.{FACTORY}")
    shapes = {name.lower(): shape.layers for name, (_, shape) in _SHAPES.items()}
    return reader.degree(f"{MODEL}.n_layers", _OLMOE["n_layers"] if made == "olmoe_1b_7b" else shapes.get(made, 1))


def _with_experts(reader: KeyReader) -> Mapping[str, Any] | None:
    """A decoder whose layers all have experts, none of them a dense part beside; None where its sizes are not said."""
    published = reader.word(f"{MODEL}.{FACTORY}") == "olmoe_1b_7b"
    usual = _OLMOE if published else dict.fromkeys(_OLMOE, 0)
    sizes = {name: reader.degree(f"{MODEL}.{name}", usual[name] or 1) for name in _OLMOE}
    if missing := [name for name in _OLMOE if not usual[name] and reader.get(f"{MODEL}.{name}") is None]:
        reader.refuse(MODEL, _MOE, f"it does not say {', '.join(missing)}", "name the model")
        return None
    for name in reader.get(MODEL):
        if name not in (*_SIZES, *_CHANGE_NOTHING, *SAME):
            reader.refuse(f"{MODEL}.{name}", "given", "what it changes of the model is not read", "name the model")
    capacity = f"{MODEL}.capacity_factor"
    if not published and not reader.switch(f"{MODEL}.dropless") and reader.get(capacity, _CAPACITY) != 1:
        why = "experts compute empty places up to their capacity"
        reader.refuse(capacity, reader.get(capacity, _CAPACITY), why, "use dropless=True to check the rest")
    width, key = sizes["expert_hidden_size"], f"{MODEL}.shared_expert_hidden_size"
    shared = 0 if reader.get(key) is None else reader.degree(key)
    if shared % width:
        reader.refuse(key, shared, f"it is no multiple of {width}", "name the model")
    counted = {"num_experts": sizes["num_experts"], "num_experts_per_tok": sizes["top_k"]}
    own: dict[str, Any] = {"model_type": "olmoe", "intermediate_size": width, **counted}
    if shared:  # GLM's layers have what these have: shared experts counted in experts, and no dense layer
        own = {
            "model_type": "glm4_moe",
            "moe_intermediate_size": width,
            "intermediate_size": width,
            "n_routed_experts": sizes["num_experts"],
            "num_experts_per_tok": sizes["top_k"],
            "n_shared_experts": max(1, shared // width),
            "first_k_dense_replace": 0,
            "head_dim": sizes["d_model"] // sizes["n_heads"],
        }
    return {
        **own,
        "hidden_size": sizes["d_model"],
        "num_hidden_layers": sizes["n_layers"],
        "num_attention_heads": sizes["n_heads"],
        "num_key_value_heads": sizes["n_heads"],
        **_ends(reader),
    }


def _ends(reader: KeyReader) -> dict[str, Any]:
    """What all models have alike."""
    return {
        "vocab_size": reader.degree(f"{MODEL}.vocab_size", 100_352),
        "max_position_embeddings": reader.degree(LENGTH, 4096),
        "tie_word_embeddings": False,
        "rope_theta": 500_000,
    }


def olmo_model(reader: KeyReader) -> Mapping[str, Any] | None:
    """The model in the words of the transformers library; None of those that are not known.

    Args:
        reader: the reader of the script.
    """
    made = reader.word(f"{MODEL}.{FACTORY}")
    if made in (_MOE, "olmoe_1b_7b"):
        return _with_experts(reader)
    known = {name.lower(): shape for name, shape in _SHAPES.items()}
    if made not in known:
        why = f"{', '.join((*_SHAPES, 'olmoe_1B_7B', _MOE))} are read"
        why = "a dense part runs beside the experts of a layer" if made == "small_hybrid_moe" else why
        reader.refuse(MODEL, reader.get(f"{MODEL}.{FACTORY}"), why, "name the model")
        return None
    family, shape = known[made]
    for name in reader.get(MODEL):
        if name not in (*_PLAIN, *SAME):
            reader.refuse(f"{MODEL}.{name}", "given", "what it changes of the model is not read", "name the model")
    heads = reader.degree(f"{MODEL}.n_heads", shape.heads)
    layers = olmo_layers(reader)
    windows = _windows(reader, family, layers)
    return {
        **windows,
        "model_type": "olmo3" if windows else family,
        "hidden_size": shape.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": reader.degree(f"{MODEL}.n_kv_heads", shape.kv_heads or heads),
        "intermediate_size": shape.width,
        **_ends(reader),
    }


def _windows(reader: KeyReader, family: str, layers: int) -> dict[str, int]:
    """The width of windows that are those of Olmo 3: three layers with one, then one without."""
    key = f"{MODEL}.{WINDOW}"
    if reader.get(key) is None:
        return {}
    pattern, first = reader.get(f"{key}.pattern"), reader.get(f"{key}.force_full_attention_on_first_layer")
    three_and_one = isinstance(pattern, list) and len(pattern) == 4 and len({*pattern[:3]}) == 1 and pattern[3] == -1
    if (
        family in ("olmo2", "olmo3")
        and three_and_one
        and first is False  # it is forced by default
        and layers % 4 == 0
        and isinstance(pattern[0], int)
        and pattern[0] > 0
    ):
        return {"sliding_window": pattern[0]}
    why = "windows on three layers of four, the first among them, are read"
    reader.refuse(key, pattern or "given", why, "name the model")
    return {}
