"""A decoder of any name: read where every key is understood, and what is assumed of it said."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.errors import Problem, UnsupportedError, nearest
from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields
from meshwright.specs.model import ModelSpec

NORMS = {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm", "rmsnorm": "rmsnorm", "layernorm": "layernorm"}
CAUSAL = ("CausalLM", "LMHead")
STATED = ("total_parameters", "total_params", "num_parameters", "num_params", "n_params")
"""Keys under which people write how many parameters their model has."""
NEAR = 0.01
"""Share by which a stated number may be off: some leave out norms, or the embedding's padding."""


def _decoder(fields: Fields) -> Mapping[str, object]:
    """Refuse a class that is no language model; learned positions where the config says so."""
    # Around a nested text model stands the class of the whole, with its towers.
    classes = fields.own("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    if isinstance(first, str) and not any(word in first for word in CAUSAL):
        from meshwright.formats.huggingface.other_kinds import evidence  # most configs are of decoders

        seen = evidence(fields.unread())
        why = f"the family is unknown, and this is not the class of a decoder{f': {seen}' if seen else ''}"
        fix = "name the class of a decoder (...ForCausalLM) if its layers are those of one"
        fields.refuse("architectures", first, why, fix)
        fields.done()  # of another kind of model nothing else is worth a word
    parts: dict[str, object] = {}
    if fields.raw("position_embedding_type") in ("absolute", "learned", "learned_absolute"):
        parts["learned_positions"] = True
    norm = NORMS.get(str(fields.raw("normalization")))
    if norm is not None:
        parts["norm"] = norm
    if fields.given("untie_embeddings_and_output_weights"):
        parts["tie_word_embeddings"] = not fields.flag("untie_embeddings_and_output_weights", default=True)
    return parts


generic = Family(
    title="a decoder of unknown name",
    source="what keys of these names mean in transformers 5.23.0",
    required=(),
    dropouts=(
        *(
            "attention_dropout",
            "attn_pdrop",
            "resid_pdrop",
            "residual_dropout",
            "hidden_dropout",
            "hidden_dropout_prob",
        ),
        *("embd_pdrop", "dropout"),
    ),
    rule=_decoder,
)


def check_stated(model: ModelSpec, config: Mapping[str, object]) -> None:
    """Refuse a reading that has another number of parameters than the config states.

    Args:
        model: the model as it was read.
        config: the config of an unknown family.

    Raises:
        UnsupportedError: the numbers differ by more than a hundredth, so that its layers are others.
    """
    for key in STATED:
        said = config.get(key)
        if isinstance(said, int) and said > 1 and abs(model.parameters / said - 1) > NEAR:
            what = f"model {model.name}: {key} is {said:,}"
            why = f"read as a decoder of its sizes it has {model.parameters:,}, so that its layers are others"
            fix = f"take {key} out to plan it as it was read, or write the model_type of a family with its layers"
            raise UnsupportedError(Problem(what=what, why=why, fix=fix, field=key), code="MW402")


def assumed(model: ModelSpec, said: str, known: Mapping[str, str]) -> str:
    """What a model of an unknown family was taken for.

    Args:
        model: the model as it was read.
        said: its `model_type`.
        known: the families that are known.
    """
    layer = model.kinds()[-1]
    mixer, mlp = layer.attention.describe(), layer.mlp.describe()
    heads = f"{mixer['heads']} heads" if "heads" in mixer else layer.attention.kind
    groups = f" in {mixer['kv_heads']} groups" if mixer.get("kv_heads") not in (None, mixer.get("heads")) else ""
    experts = f"{mlp['experts']} experts, {mlp['top_k']} a token, of " if layer.mlp.routed_experts else ""
    gate = "gated" if mlp.get("gated") else "plain"
    close = nearest(said, known) if said else ()
    unknown = f"{said!r} is unknown{f' (nearest known: {close[0]})' if close else ''}" if said else "is missing"
    return (
        f"model_type {unknown}; read as a decoder of its "
        f"sizes: {heads}{groups}, {experts}{gate} MLPs, {layer.norms} "
        f"{'RMSNorms' if layer.norm == 'rmsnorm' else 'LayerNorms'} a layer, "
        f"{'tied' if model.tied_embeddings else 'untied'} embeddings; check its parameter count"
    )
