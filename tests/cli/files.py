"""Files that tests of the command line give it."""

from __future__ import annotations

from typing import Any

SMALL_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
DEVICE = """
name = "my-h100"
generation = "hopper"
bf16_tflops = 989.4
memory_gib = 79.1
memory_gb_s = 3350
units = 132
"""
