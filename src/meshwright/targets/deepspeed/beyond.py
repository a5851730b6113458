"""Parts of DeepSpeed's configuration that change the model, its memory or its steps, and that are not read.

Source: deepspeed/runtime/config.py, runtime/data_pipeline and compression/config.py of deepspeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.targets.keys import KeyReader, value_of

_SKIPS = "steps leave out layers or tokens, fewer of them as it trains"
_COMPRESSION = "compression_training"
_REFUSED = {
    "progressive_layer_drop.enabled": _SKIPS,
    "data_efficiency.data_routing.random_ltd.enabled": _SKIPS,
    "elasticity.enabled": "the batch follows the devices that are there",
    "quantize_training.enabled": "weights are quantized while it trains",
    "amp.enabled": "its formats are those of apex",
    "torch_autocast.enabled": "products are in another format than the weights beside them",
    "zero_optimization.zenflow": "part of the optimizer's step runs beside later steps",
    f"{_COMPRESSION}.layer_reduction.enabled": "layers are left out of the model",
    **{
        f"{_COMPRESSION}.{part}.shared_parameters.enabled": "products and weights change their format while it trains"
        for part in ("weight_quantization", "activation_quantization")
    },
}
_WHOLE = ("dense", "")
_CURRICULA = ("curriculum_learning", "data_efficiency.data_sampling.curriculum_learning")


def refuse_beyond(reader: KeyReader) -> None:
    """Refuse what no plan here holds.

    Args:
        reader: the reader of the configuration, or of a file that holds its keys.
    """
    for path, why in _REFUSED.items():
        said = value_of(reader.keys, path)
        if said in (None, False, {}) or str(said).strip().lower() in ("false", "auto"):
            continue
        reader.get(path)
        reader.refuse(path, "given" if isinstance(said, dict) else said, why, "leave it out to check the rest")
    mode = value_of(reader.keys, "sparse_attention")
    if isinstance(mode, dict) and str(mode.get("mode", "fixed")) not in _WHOLE:
        reader.get("sparse_attention.mode")
        reader.refuse("sparse_attention", "given", "attention leaves out blocks", "leave it out to check the rest")


def curricula(reader: KeyReader) -> Iterator[str]:
    """Says which steps of a curriculum are planned.

    Args:
        reader: the reader of the configuration.
    """
    for path in _CURRICULA:
        said = value_of(reader.keys, path)
        if not isinstance(said, dict) or str(said.get("enabled", False)).lower() != "true":
            continue
        least, most = said.get("min_difficulty"), said.get("max_difficulty")
        spans = f" from {least} to {most}" if str(said.get("curriculum_type", "")).startswith("seqlen") else ""
        reader.get(f"{path}.enabled")
        yield f"steps grow as it trains{spans}: those of full length are planned: {path}"
