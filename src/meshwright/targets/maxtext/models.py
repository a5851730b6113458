"""Models that MaxText 0.2.5 ships, by our names. Source: maxtext/configs/models of maxtext 0.2.5 (2026-11)."""

from __future__ import annotations

from meshwright.specs.model import ModelSpec

MODELS = {
    "llama-2-7b": "llama2-7b",
    "llama-2-13b": "llama2-13b",
    "llama-2-70b": "llama2-70b",
    "llama-3-8b": "llama3-8b",
    "llama-3-70b": "llama3-70b",
    "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b",
    "llama-3.1-405b": "llama3.1-405b",
    "llama-3.3-70b": "llama3.3-70b",
    "mixtral-8x7b": "mixtral-8x7b",
    "gemma-2b": "gemma-2b",
    "gemma-7b": "gemma-7b",
    "gemma-2-2b": "gemma2-2b",
    "gemma-2-9b": "gemma2-9b",
    "gemma-2-27b": "gemma2-27b",
    "qwen3-0.6b": "qwen3-0.6b",
    "qwen3-4b": "qwen3-4b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-14b": "qwen3-14b",
    "qwen3-32b": "qwen3-32b",
    "deepseek-v2-lite": "deepseek2-16b",
    "deepseek-v2": "deepseek2-236b",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b",
}
"""MaxText's names of the models whose constants are the same as those of the model's own config."""

READ_AS = {"mistral-7b": "mistral-7b-v0.3", "mixtral-8x22b": "mixtral-8x22b"}
"""Models that no plan is written for: the same but for 768 words less or more."""


def maxtext_name(model: ModelSpec) -> str | None:
    """MaxText's name of a model, None where it ships none of it."""
    return MODELS.get(model.name)
