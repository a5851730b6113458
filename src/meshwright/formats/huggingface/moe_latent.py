"""Families of 2026 with latent attention and experts: each says where it differs."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields


def _mistral_large4(fields: Fields) -> Mapping[str, object]:
    """Layers without rotary positions have heads as wide; those that take the keys of others cannot be planned."""
    sources = fields.raw("kv_source_layers")
    if isinstance(sources, list) and sources != list(range(len(sources))):
        why = "layers that share the keys and values of others cannot be planned"
        fields.refuse("kv_source_layers", sources, why, "leave it out to plan the model with those of each layer")
    turned, turns = fields.raw("no_rope_layers"), fields.whole("qk_rope_head_dim", low=0)
    if not isinstance(turned, list) or not turns:
        return {}
    still = {"qk_nope_head_dim": fields.whole("qk_nope_head_dim") + turns, "qk_rope_head_dim": 0}
    return {"per_layer_config": {str(number): still for number, one in enumerate(turned) if not one}}


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
