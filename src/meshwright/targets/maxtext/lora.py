"""Adapters of MaxText's fine-tuning (train_sft): a pattern over paths of modules, one of its own where none is given.

Source: src/maxtext/configs/post_train/lora_module_path.yml and utils/lora_utils.py of MaxText (2026-11).
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.targets.keys import KeyReader

_NAMES = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "out": "o_proj",
    "wi_0": "mlp.gate_proj",
    "wi_1": "mlp.up_proj",
    "wo": "mlp.down_proj",
}
"""Products of a dense layer by MaxText's names."""
_ABOVE = ("decoder", "layers", "scanned_blocks", "layers_remainder", "self_attention", "attention", "mlp")
"""What stands above them in a path."""
_OF_ALL = re.compile(r"(?:llama[23]|qwen3-\d+(?:\.\d+)?b$|mistral|gemma|olmo)")
"""Dense models whose own pattern is that of all products."""


def lora_said(reader: KeyReader) -> dict[str, Any] | None:
    """The field `lora` of a workload; None where all of the model is trained.

    Args:
        reader: the reader of the configuration.
    """
    if not reader.switch("lora.enable_lora"):
        return None
    path, model = "lora.lora_module_path", reader.word("model_name")
    pattern = str(reader.get(path) or "")
    words = re.findall(r"[A-Za-z_]\w*", pattern)
    targets = list(dict.fromkeys(_NAMES[word] for word in words if word in _NAMES))
    others = [word for word in words if word not in _NAMES and word not in _ABOVE]
    if not pattern and _OF_ALL.match(model):
        targets = list(_NAMES.values())
    elif not pattern:
        reader.refuse(path, None, f"MaxText has a pattern of its own for {model or 'the model'}", "write the pattern")
    elif others or not targets:
        why = f"{', '.join(_NAMES)} of dense layers can be planned, not {', '.join(others) or 'none of them'}"
        reader.refuse(path, pattern, why, "leave it out to check the rest")
    stored = reader.word("lora.lora_weight_qtype").replace("null", "")
    if stored not in ("", "nf4"):
        reader.refuse("lora.lora_weight_qtype", stored, "frozen weights in nf4 can be planned", "use nf4")
    narrow = reader.word("weight_dtype", "float32") == "bfloat16"
    base = {"base": "nf4-single"} if stored else {} if narrow else {"base": "fp32"}
    return {"r": reader.degree("lora.lora_rank"), "targets": targets or ["all-linear"], **base}
