"""One reader for all families of decoders: a family says in which keys, defaults and parts it differs from Llama."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from meshwright.formats.huggingface.fields import Fields, fold
from meshwright.specs.layers import Attention, DenseMlp, LatentAttention, MoeMlp
from meshwright.specs.model import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """The keys of one config that its family spells in its own way, and the parts that its layers have."""

    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Older spellings of a shared key."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Values of shared keys that the config may leave out."""
    tied: bool = False
    """Whether the head shares the embedding's weights where `tie_word_embeddings` is left out."""
    max_seq_len: int | None = None
    """Longest sequence in tokens, where it is not under `max_position_embeddings`."""
    kv_heads: int | Literal["required", "optional", "heads"] = "required"
    """Key and value heads: a number, as many as query heads, or read from a key that may or may not be left out."""
    attention: LatentAttention | None = None
    """Latent attention; None reads grouped attention from the shared keys."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    window: int | None = None
    """Keys a query of a sliding layer sees; None: all."""
    sliding: Sequence[bool] | None = None
    """Whether each layer is a sliding one; None: all are."""
    ffn_key: str = "intermediate_size"
    """Key of the width of a dense MLP."""
    ffn_optional: bool = False
    """Whether the width is four times the hidden size where its key is left out."""
    gated: bool = True
    mlp_bias: bool = False
    mlps: Sequence[DenseMlp | MoeMlp] | None = None
    """MLP of each layer; None: equal dense ones."""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norms: int = 2
    """Norms a layer."""
    parallel_block: bool = False
    dropout: bool | None = None
    """Whether any dropout probability is above zero; None reads `attention_dropout` alone."""
    learned_positions: int | None = None
    """Rows of the learned position table beyond the longest sequence; None: no table."""
    embedding_norm: bool = False
    final_norm: bool = True
    head_bias: bool = False
    mtp_layers: int = 0
    notes: tuple[str, ...] = ()

    def model(self, fields: Fields, family: str) -> ModelSpec:
        """The model of a config, after all its problems are raised together.

        Args:
            fields: the config's fields.
            family: name of the family.

        Raises:
            InputError: if a field is missing or wrong.
            UnsupportedError: if a field asks for what cannot be planned.
        """
        hidden = fields.whole("hidden_size", *self._synonyms("hidden_size"))
        layers = fields.layers(*self._synonyms("num_hidden_layers"))
        heads, kv_heads, head_dim = (1, 1, 1) if self.attention else self._heads(fields, hidden)
        if self.mlps is not None:
            mlps = self.mlps
        else:
            width = fields.maybe(self.ffn_key) or 4 * hidden if self.ffn_optional else fields.whole(self.ffn_key)
            mlps = [DenseMlp(ffn_hidden=width, gated=self.gated, bias=self.mlp_bias)] * layers
        vocab = fields.vocab(self.defaults.get("vocab_size"))
        longest = self.max_seq_len or fields.max_seq_len(
            *self._synonyms("max_position_embeddings"), default=self.defaults.get("max_position_embeddings")
        )
        tied = fields.flag("tie_word_embeddings", default=self.tied)
        dropout = fields.dropout("attention_dropout") if self.dropout is None else self.dropout
        fields.done()
        full = self.attention or Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=self.qkv_bias,
            out_bias=self.out_bias,
            qk_norm=self.qk_norm,
            sinks=self.sinks,
        )
        narrow = replace(full, window=self.window) if isinstance(full, Attention) else full

        def layer(mlp: DenseMlp | MoeMlp, slides: bool) -> LayerSpec:
            return LayerSpec(
                attention=narrow if slides else full,
                mlp=mlp,
                norm=self.norm,
                norms=self.norms,
                parallel_block=self.parallel_block,
                dropout=dropout,
            )

        places = list(zip(mlps, self.sliding or [True] * layers, strict=True))
        kinds = {place: layer(*place) for place in set(places)}
        return ModelSpec(
            name=fields.name,
            family=family,
            hidden=hidden,
            vocab=vocab,
            max_seq_len=longest,
            runs=fold([kinds[place] for place in places]),
            tied_embeddings=tied,
            learned_positions=0 if self.learned_positions is None else longest + self.learned_positions,
            embedding_norm=self.embedding_norm,
            final_norm=self.norm if self.final_norm else None,
            head_bias=self.head_bias,
            mtp_layers=self.mtp_layers,
            notes=self.notes,
        )

    def _heads(self, fields: Fields, hidden: int) -> tuple[int, int, int]:
        """Query heads, key and value heads, and the width of one."""
        default = self.defaults.get
        heads = fields.whole(
            "num_attention_heads", *self._synonyms("num_attention_heads"), default=default("num_attention_heads")
        )
        if isinstance(self.kv_heads, int):
            kv_heads = self.kv_heads
        elif self.kv_heads == "heads":
            kv_heads = heads
        else:
            required = self.kv_heads == "required"
            kv_heads = fields.kv_heads(heads, required=required, default=default("num_key_value_heads"))
        return heads, kv_heads, fields.head_dim(hidden, heads, default=default("head_dim"))

    def _synonyms(self, key: str) -> tuple[str, ...]:
        return self.synonyms.get(key, ())


def sliding_window(fields: Fields, default: int | None, key: str = "sliding_window") -> int | None:
    """The window under `key`; null switches windows off, a missing key is the default."""
    return fields.maybe(key) if fields.has(key) else default
