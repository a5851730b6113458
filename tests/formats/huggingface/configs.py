"""Configs that the tests change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


MOE: dict[str, Any] = LLAMA | {
    "num_experts": 64,
    "num_local_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1024,
}


BUILT_IN = sorted(
    path
    for path in (Path(__file__).parents[3] / "src" / "meshwright" / "library" / "data" / "models").glob("*.json")
    if path.stem != "index"
)


CONFIGS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text())["config"] for path in BUILT_IN}
