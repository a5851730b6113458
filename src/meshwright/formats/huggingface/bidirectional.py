"""Encoders of text alone, whose tokens see each other whatever their order: BERT, RoBERTa, DeBERTa and their kin.

Sizes that a config leaves out are those of its configuration class, where the class states one shape for all models.
Source: configuration and modelling classes of transformers 5.23.0, read 2026-11-22 and 2026-11-29.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.errors import Problem, UnsupportedError
from meshwright.formats.huggingface.encoders import Stack, must_divide
from meshwright.formats.huggingface.fields import MAX_LAYERS, MAX_VOCAB, Fields
from meshwright.formats.huggingface.heads import MLM
from meshwright.formats.huggingface.tower import section
from meshwright.specs.layer_spec import layer_runs
from meshwright.specs.layers.attention import Attention
from meshwright.specs.model import ModelSpec


def bert(
    fields: Fields,
    *,
    family: str = "bert",
    segments: int = 2,
    rotary: bool = False,
    gated: bool = False,
    bias: bool = True,
    mlp_bias: bool = True,
) -> ModelSpec:
    """BERT: bidirectional layers, norms behind them, a table of segments (Devlin et al. 2018, arXiv 1810.04805).

    Args:
        fields: the fields of the config.
        family: its name.
        segments: rows of the table of segments where the config states none.
        rotary: whether positions are rotary, without a table.
        gated: whether MLPs have a gate.
        bias: whether matrices of attention have one.
        mlp_bias: whether those of MLPs have one.
    """
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    vocab = fields.whole("vocab_size", high=MAX_VOCAB)
    layers, width = fields.layers(), fields.whole("intermediate_size")
    longest = fields.whole("max_position_embeddings", default=512)
    segments = fields.whole("type_vocab_size", default=segments, low=0)
    tasks = fields.whole("task_type_vocab_size", default=3) if fields.flag("use_task_id", default=False) else 0
    dropout = fields.dropout("hidden_dropout_prob", "attention_probs_dropout_prob", default=0.1)
    tied = fields.flag("tie_word_embeddings", default=True)
    fields.word("position_embedding_type", ("absolute", "rope", "rotary"), "absolute")
    must_divide(fields, "num_attention_heads", heads, "hidden_size", hidden)
    fields.done()
    stack = Stack(
        hidden=hidden,
        heads=heads,
        head_dim=hidden // heads,
        width=width,
        gated=gated,
        bias=bias,
        mlp_bias=mlp_bias,
        dropout=dropout,
    )
    return ModelSpec(
        name=fields.name,
        family=family,
        hidden=hidden,
        vocab=vocab,
        max_seq_len=longest,
        runs=(stack.runs(layers),),
        tied_embeddings=tied,
        learned_positions=(0 if rotary else longest) + segments + tasks,
        embedding_norm=True,
        final_norm="layernorm",
        head_bias=True,
        head_transform=True,
        notes=(MLM,),
    )


def ernie(fields: Fields) -> ModelSpec:
    """ERNIE 1 to 3: BERT, and a table of tasks where the config says so (Sun et al. 2019, arXiv 1904.09223)."""
    return bert(fields, family="ernie")


def normed_before(fields: Fields) -> ModelSpec:
    """Megatron-LM's BERT and XLM-RoBERTa-XL: norms before the parts, and one behind the layers instead of before."""
    return bert(fields, family="bert")


def nomic_bert(fields: Fields) -> ModelSpec:
    """Nomic BERT: rotary positions, gated MLPs, no biases (Nussbaum et al. 2024, arXiv 2402.01613)."""
    return bert(fields, family="nomic_bert", rotary=True, gated=True, bias=False, mlp_bias=False)


def gte(fields: Fields) -> ModelSpec:
    """GTE: rotary positions, gated MLPs with one bias (Zhang et al. 2024, arXiv 2407.19669)."""
    model = bert(fields, family="gte", segments=1, rotary=True, gated=True, mlp_bias=False)
    left_out = model.hidden * model.num_layers
    note = f"biases of the last product of MLPs are left out: {left_out:,} parameters fewer than it has are counted"
    return replace(model, notes=(*model.notes, note))


def jina_embeddings_v3(fields: Fields) -> ModelSpec:
    """Jina embeddings 3: XLM-RoBERTa with rotary positions, without adapters of tasks (Sturua et al. 2024)."""
    return bert(fields, family="jina_embeddings_v3", segments=1, rotary=True)


def electra(fields: Fields) -> ModelSpec:
    """ELECTRA of the sizes whose embeddings are as wide as their layers (Clark et al. 2020, arXiv 2003.10555)."""
    width = fields.whole("embedding_size", default=128)
    if width != fields.whole("hidden_size"):
        problem = Problem(
            what=f"model {fields.name}: embedding_size is {width}",
            why="embeddings of another width than the layers, and a matrix between them, cannot be planned here",
            fix="ELECTRA-Base and -Large, whose embeddings are as wide as their layers, can be",
            field="embedding_size",
        )
        raise UnsupportedError(problem, code="MW402")
    return bert(fields, family="electra")


def esm(fields: Fields) -> ModelSpec:
    """ESM-2: a language model of proteins, norms before the parts, rotary positions (Lin et al. 2023, Science 379)."""
    folding = fields.raw("esmfold_config") is not None or fields.flag("is_folding_model", default=False)
    if folding:
        what, why = f"model {fields.name}: is_folding_model is true", "a trunk of triangles over pairs of residues"
        problem = Problem(what=what, why=f"it has {why}, which cannot be planned here", field="is_folding_model")
        raise UnsupportedError(problem, code="MW402")
    # The norm behind the layers stands where BERT has that of embeddings; this one it has where the config says so.
    model = bert(fields, family="esm", segments=0, rotary=fields.raw("position_embedding_type") == "rotary")
    rows = 2 * fields.flag("emb_layer_norm_before", default=False)
    contacts = model.num_layers * fields.whole("num_attention_heads") + 1
    note = f"the head that predicts contacts is left out: {contacts:,} parameters"
    return replace(model, learned_positions=model.learned_positions + rows, notes=(*model.notes, note))


def mpnet(fields: Fields) -> ModelSpec:
    """MPNet: BERT without segments, with biases of relative positions (Song et al. 2020, arXiv 2004.09297)."""
    buckets = fields.whole("relative_attention_num_buckets", default=32)
    model = bert(fields, family="mpnet", segments=0)
    heads = fields.whole("num_attention_heads")
    note = f"biases of relative positions are left out: {buckets * heads:,} parameters"
    return replace(model, notes=(*model.notes, note))


def deberta_v2(fields: Fields) -> ModelSpec:
    """DeBERTa 2 and 3: attention to relative positions of one table for all layers (He et al. 2021, arXiv 2111.09543).

    Products of queries and keys with relative positions are counted as matrices alone.
    """
    relative = fields.flag("relative_attention", default=False)
    buckets = fields.maybe("position_buckets", low=-1) or -1
    if relative and buckets < 1:
        furthest = fields.maybe("max_relative_positions", low=-1) or -1
        buckets = furthest if furthest > 0 else fields.whole("max_position_embeddings", default=512)
    kernel = fields.whole("conv_kernel_size", default=0, low=0)
    words, shared = fields.raw("pos_att_type"), fields.flag("share_att_key", default=False)
    kinds = words.split("|") if isinstance(words, str) else words if isinstance(words, (list, tuple)) else []
    absolute = fields.flag("position_biased_input", default=True)
    normed = "layer_norm" in str(fields.raw("norm_rel_ebd") or "")
    hidden, layers = fields.whole("hidden_size"), fields.layers()
    model = bert(fields, family="deberta-v2", segments=0, rotary=not absolute)
    own = 0 if shared or not relative else len({"c2p", "p2c"} & set(kinds)) * layers
    # A table row is as wide as the layers; so is what each row of a matrix with its bias holds.
    rows = 2 * buckets + 2 * normed if relative else 0
    rows += own * (hidden + 1)
    rows += kernel and kernel * hidden + 3
    note = "scores of relative positions are not counted; attention runs unfused under transformers"
    return replace(
        model,
        learned_positions=model.learned_positions + rows,
        notes=(*model.notes, *((note,) if relative else ())),
    )


def roberta(fields: Fields) -> ModelSpec:
    """RoBERTa: BERT with one segment, whose positions start at 2 (Liu et al. 2019, arXiv 1907.11692)."""
    model = bert(fields)
    return replace(model, family="roberta", max_seq_len=max(1, model.max_seq_len - 2))


def roberta_prelayernorm(fields: Fields) -> ModelSpec:
    """RoBERTa with norms before the parts, and one behind the layers beside that of the head (fairseq, 2019)."""
    model = bert(fields)
    # A table row is as wide as the layers; so is what the weights and the shifts of a norm hold.
    rows, longest = model.learned_positions + 2, max(1, model.max_seq_len - 2)
    return replace(model, family="roberta-prelayernorm", learned_positions=rows, max_seq_len=longest)


def layoutlm(fields: Fields) -> ModelSpec:
    """LayoutLM 1: BERT with tables of places and sizes on the page, and a pooler (Xu et al. 2019, arXiv 1912.13318)."""
    model = bert(fields, family="layoutlm")
    # Left, upper, width and height; each row is as wide as the layers, as what the pooler holds is.
    rows = 4 * fields.whole("max_2d_position_embeddings", default=1024) + model.hidden + 1
    return replace(model, learned_positions=model.learned_positions + rows)


def roformer(fields: Fields) -> ModelSpec:
    """RoFormer: BERT with rotary positions in a table as wide as a head (Su et al. 2021, arXiv 2104.09864)."""
    width, hidden = fields.maybe("embedding_size"), fields.whole("hidden_size")
    if width not in (None, hidden):
        problem = Problem(
            what=f"model {fields.name}: embedding_size is {width}",
            why="embeddings of another width than the layers, and a matrix between them, cannot be planned here",
            fix="RoFormer-Base, whose embeddings are as wide as its layers, can be",
            field="embedding_size",
        )
        raise UnsupportedError(problem, code="MW402")
    model = bert(fields, family="roformer", rotary=True)
    rows = model.max_seq_len // fields.whole("num_attention_heads")
    return replace(model, learned_positions=model.learned_positions + rows)


def bert_generation(fields: Fields) -> ModelSpec:
    """The decoder of BertGeneration: BERT whose tokens see earlier ones alone (Rothe et al. 2019, arXiv 1907.12461)."""
    model = bert(fields, family="bert-generation", segments=0)
    own = []
    for layer in model.layers():
        assert isinstance(layer.attention, Attention)
        own.append(replace(layer, attention=replace(layer.attention, causal=True)))
    return replace(model, runs=layer_runs(own), head_transform=False, final_norm=None, notes=())


def distilbert(fields: Fields) -> ModelSpec:
    """DistilBERT: BERT of half the layers, without segments (Sanh et al. 2019, arXiv 1910.01108)."""
    shape = {
        "hidden_size": fields.whole("dim", default=768),
        "num_attention_heads": fields.whole("n_heads", default=12),
        "num_hidden_layers": fields.whole("n_layers", default=6, high=MAX_LAYERS),
        "intermediate_size": fields.whole("hidden_dim", default=3072),
        "vocab_size": fields.whole("vocab_size", default=30522, high=MAX_VOCAB),
        "max_position_embeddings": fields.whole("max_position_embeddings", default=512),
        "type_vocab_size": 0,
    }
    fields.done()
    return replace(bert(section(shape, fields.name)), family="distilbert")


def modernbert(fields: Fields) -> ModelSpec:
    """ModernBERT: gated MLPs, no biases, windows in two of three layers (Warner et al. 2024, arXiv 2412.13663)."""
    hidden, heads = fields.whole("hidden_size", default=768), fields.whole("num_attention_heads", default=12)
    layers = fields.whole("num_hidden_layers", default=22, high=MAX_LAYERS)
    width = fields.whole("intermediate_size", default=1152)
    vocab = fields.whole("vocab_size", default=50368, high=MAX_VOCAB)
    longest = fields.whole("max_position_embeddings", default=8192)
    every, near = fields.whole("global_attn_every_n_layers", default=3), fields.whole("local_attention", default=128)
    must_divide(fields, "num_attention_heads", heads, "hidden_size", hidden)
    fields.done()
    stack = Stack(
        hidden=hidden, heads=heads, head_dim=hidden // heads, width=width, gated=True, bias=False, norm="rmsnorm"
    )
    plain = stack.layer()
    assert isinstance(plain.attention, Attention)
    # Half the window on either side of a query, itself in both halves.
    narrow = replace(plain, attention=replace(plain.attention, window=near // 2 + 1))
    own = [plain if number % every == 0 else narrow for number in range(layers)]
    # The norm of embeddings stands before the first layer's attention.
    own[0] = replace(own[0], norms=1)
    return ModelSpec(
        name=fields.name,
        family="modernbert",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=longest,
        runs=layer_runs(own),
        tied_embeddings=True,
        embedding_norm=True,
        final_norm="rmsnorm",
        head_bias=True,
        head_transform=True,
        notes=(MLM,),
    )


def modernbert_decoder(fields: Fields) -> ModelSpec:
    """ModernBERT as a decoder, Ettin: tokens see earlier ones alone (Weller et al. 2025, arXiv 2507.11412)."""
    model = modernbert(fields)
    own = []
    for layer in model.layers():
        attention = layer.attention
        assert isinstance(attention, Attention)
        window = None if attention.window is None else attention.window - 1
        own.append(replace(layer, attention=replace(attention, causal=True, window=window)))
    return replace(model, family="modernbert-decoder", runs=layer_runs(own), notes=())
