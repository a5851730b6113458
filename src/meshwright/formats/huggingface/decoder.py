"""One reader for all decoders: what the fields of a config say; a family adds what they leave unsaid."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from meshwright.formats.huggingface.experts import read_mlps
from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import MAX_LAYERS, MAX_SEQ_LEN, MAX_VOCAB, Fields
from meshwright.formats.huggingface.mixers import read_mixers
from meshwright.specs.layer_spec import layer_runs
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.units import whole_number

OF_WORDS = ("CausalLM", "LMHead", "ConditionalGeneration")
"""What names of classes hold whose heads predict words."""
BESIDE = ("hidden_size_per_layer_input", "num_kv_shared_layers", "laurel_rank")
"""Keys of what stands beside or behind the usual parts of a layer."""
UNTIES = 5
"""Version of transformers from which a nested text model's own word on tying does not count."""
UNCLEAR_TIE = (
    "tie_word_embeddings is true around the text model and false in it: a head of its own is counted, as of weights "
    "that hold one; a model made anew from this config shares the embedding's table"
)
UNSTATED_SEQ_LEN = 2**27
"""Where a config states no longest sequence: more than is ever planned."""


def read_decoder(fields: Fields, family: Family, name: str) -> ModelSpec:
    """The model of a config, after all its problems are raised together.

    Args:
        fields: the config's fields.
        family: what the config leaves unsaid.
        name: the name of the family.

    Raises:
        InputError: if a field is missing or wrong.
        UnsupportedError: if a field asks for what cannot be planned, or changes the model and is not understood.
    """
    if family.rule is not None:
        fields.fix(family.rule(fields))
    for key in family.required:
        fields.require(key)
    fields.agree()
    said = fields.word("norm", ("rmsnorm", "layernorm"), "rmsnorm" if fields.known else _usual_norm(fields))
    norm: Literal["rmsnorm", "layernorm"] = "layernorm" if said == "layernorm" else "rmsnorm"
    hidden, layers = fields.whole("hidden_size"), fields.layers()
    mixers = read_mixers(fields, hidden, layers)
    mlps = read_mlps(fields, hidden, layers, sparse=family.sparse)
    if fields.raw("per_layer_config"):
        from meshwright.formats.huggingface.per_layer import read_per_layer  # few models differ by layer this way

        for one in read_per_layer(fields, layers):
            own = read_mixers(one.fields, hidden, layers), read_mlps(one.fields, hidden, layers, sparse=family.sparse)
            one.check(fields)
            for i in one.layers:
                mixers[i], mlps[i] = one.without(own[0][i], own[1][i])
    altup = fields.whole("altup_num_inputs", default=1, high=64)
    if any(fields.given(key) for key in BESIDE):
        from meshwright.formats.huggingface.beside import read_beside  # few models are of Gemma 3n's kind

        mixers[:layers], mlps = read_beside(fields, mixers[:layers], mlps)
    parallel = fields.flag("parallel_block", default=False)
    norms = fields.whole("norms", default=2, low=0, high=4)
    residuals = altup
    if fields.given("compress_ratios") or fields.flag("hyper_connections", default=False):
        from meshwright.formats.huggingface.compressed import read_residuals  # few models have several streams

        residuals = read_residuals(fields)
    every = fields.maybe("attn_res_block_size", high=MAX_LAYERS)
    if every and (residuals > 1 or parallel):
        beside = "several residual streams" if residuals > 1 else "attention and MLP side by side"
        fields.refuse("attn_res_block_size", every, f"attention to blocks of layers beside {beside} cannot be planned")
    dropout = fields.dropout(*family.dropouts)
    learned = fields.flag("learned_positions", default=False)
    longest = _longest(fields, learned=learned)
    offset = fields.whole("position_offset", low=0, default=0)
    model: dict[str, object] = {
        "vocab": fields.whole("vocab_size", high=MAX_VOCAB),
        "tied_embeddings": _tied(fields),
        "head_bias": fields.flag("lm_head_bias", default=False),
        **_other_head(fields),
        "learned_positions": longest + offset if learned else 0,
        "embedding_norm": fields.flag("embedding_norm", default=False),
        "final_norm": norm if fields.flag("final_norm", default=True) else None,
        "mtp_layers": fields.whole("num_nextn_predict_layers", low=0, default=0, high=64),
    }
    if fields.unread():
        from meshwright.formats.huggingface.keys import left_over

        left_over(fields)
    fields.done()

    module = mixers[layers:]
    places = list(zip(mixers[:layers], mlps, strict=True))
    kinds = {
        (mixer, mlp): LayerSpec(
            attention=mixer,
            mlp=mlp,
            norm=norm,
            norms=1 if mixer.absent or mlp.absent else norms,
            parallel_block=parallel,
            dropout=dropout,
            residuals=residuals,
            residual_mixing=fields.flag("residual_mixing", default=True),
            altup=altup > 1,
            residual_blocks=-(-layers // every) if every else 0,
            block_layers=every or 0,
        )
        for mixer, mlp in set(places)
    }
    if model["mtp_layers"]:
        from meshwright.formats.huggingface.modules import read_module  # few models predict several tokens

        like = read_module(fields, [kinds[place] for place in places])
        model["mtp_layer"] = replace(kinds[places[-1]], attention=module[0]) if module else like
    return ModelSpec(
        name=fields.name,
        family=name,
        hidden=hidden,
        max_seq_len=longest,
        runs=layer_runs([kinds[place] for place in places]),
        notes=fields.said(),
        **model,  # type: ignore[arg-type]
    )


def _longest(fields: Fields, *, learned: bool) -> int:
    """The longest sequence; no shape depends on it but that of a table of learned positions."""
    if learned:
        return fields.whole("max_position_embeddings", high=MAX_SEQ_LEN)
    longest = fields.maybe("max_position_embeddings", high=MAX_SEQ_LEN)
    if longest is None:
        fields.remark("max_position_embeddings is not stated, and no shape depends on it: any length is priced")
        return UNSTATED_SEQ_LEN
    return longest


def _usual_norm(fields: Fields) -> str:
    """LayerNorm where an unknown family states its epsilon alone."""
    layer = fields.given("layer_norm_eps") or fields.given("layer_norm_epsilon") or fields.given("layernorm_epsilon")
    return "layernorm" if layer and not fields.given("rms_norm_eps") else "rmsnorm"


def _tied(fields: Fields) -> bool:
    """Whether the head is the embedding's table.

    In transformers 5 the class of the whole model ties, and only where weights have no head of their own: its false
    counts whatever the text model says, which writes a default; its true may be a default, too, so that it is said
    and the text model's word counts.
    """
    inner = fields.flag("tie_word_embeddings", default=False)
    version = whole_number(str(fields.around("transformers_version") or "").partition(".")[0])
    decides = version is not None and version >= UNTIES
    outer = fields.around("tie_word_embeddings")
    if decides and outer is True and not inner:
        fields.remark(UNCLEAR_TIE)
    return inner and not (decides and outer is False)


def _other_head(fields: Fields) -> dict[str, object]:
    """Fields of a head that predicts no words, none where the class of the config has the usual one."""
    said = fields.own("architectures")
    name = said[0] if isinstance(said, (list, tuple)) and said else None
    if not isinstance(name, str) or any(word in name for word in OF_WORDS):
        return {}
    from meshwright.formats.huggingface.heads import read_head  # most configs are of language models

    return read_head(fields, name)
