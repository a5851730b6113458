"""Families of 2026 with latent attention and experts: each says where it differs."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields


def _mistral_large4(fields: Fields) -> Mapping[str, object]:
    """Layers whose keys and values are those of another one name it, which cannot be planned."""
    sources = fields.raw("kv_source_layers")
    if isinstance(sources, list) and sources != list(range(len(sources))):
        why = "layers that share the keys and values of others cannot be planned"
        fields.refuse("kv_source_layers", sources, why, "leave it out to plan the model with those of each layer")
    return {}


mistral_large4 = Family(
    title="Mistral Large 4",
    fixed={"expert_width_stated": True},
    required=("kv_lora_rank", "index_topk"),
    sparse=True,
    rule=_mistral_large4,
)
dots3_note = Family(
    title="dots3.note",
    spells={"shared_expert_intermediate_size": ("shared_experts_intermediate_size",)},
    fixed={"expert_width_stated": True, "latent_gate": "head"},
    required=("q_lora_rank", "kv_lora_rank"),
    sparse=True,
)
mistral4 = Family(
    title="Mistral Small 4", fixed={"expert_width_stated": True}, required=("q_lora_rank", "kv_lora_rank"), sparse=True
)
