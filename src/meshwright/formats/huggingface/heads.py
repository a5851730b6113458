"""What the head of a decoder predicts, by the class of its config: words, classes or scores, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.fields import MAX_VOCAB, Fields

BIASED = {"ForSequenceClassification": False, "ForTokenClassification": True}
"""Endings of classes that score classes, and whether the scores have biases."""
NEW = 5
"""Version of transformers from which a nested text model's own word on tying does not count."""
USUAL_CLASSES = 2
"""Classes where a config names none, as in transformers."""


def read_head(fields: Fields) -> dict[str, object]:
    """The model's fields about its head.

    A class such as `MistralModel` ends at the last norm, and `LlamaForSequenceClassification` has scores in place of
    words; both are published for embeddings, rewards and reranking, with the table of a language model's config. A
    class of remote code keeps its name whatever it holds, so that one that `auto_map` calls causal is read as such.

    Args:
        fields: the config's fields.

    Source: transformers 5.24.0, modeling_layers.py (GenericForSequenceClassification, GenericForTokenClassification).
    """
    words: dict[str, object] = {
        "tied_embeddings": _tied(fields),
        "head_bias": fields.flag("lm_head_bias", default=False),
    }
    said = fields.own("architectures")
    name = said[0] if isinstance(said, (list, tuple)) and said and isinstance(said[0], str) else ""
    ending = next((ending for ending in BIASED if name.endswith(ending)), None)
    if ending is not None:
        count = _classes(fields)
        many = f"{count} classes" if count > 1 else "one number"
        fields.remark(f"{name}: its head scores {many} a token in place of words")
        return {"tied_embeddings": False, "head_bias": BIASED[ending], "classes": count}
    remote = fields.own("auto_map")
    causal = isinstance(remote, Mapping) and any("LM" in str(key) for key in remote)
    headed = causal or "LMHead" in name or fields.flag("lm_head", default=False)
    if name.endswith("Model") and not headed:
        fields.remark(f"{name} has no head: what its loss does with the vectors of samples is not counted")
        return {"tied_embeddings": False, "head_bias": False, "classes": 0}
    return words


def _tied(fields: Fields) -> bool:
    """Whether the head is the embedding's table.

    In transformers 5 the class of the whole model ties, and only where weights have no head of their own: its false
    counts whatever the text model says, which writes a default; its true may be a default, too, and says nothing.
    """
    inner = fields.flag("tie_word_embeddings", default=False)
    version = str(fields.around("transformers_version") or "").partition(".")[0]
    untied = fields.around("tie_word_embeddings") is False and version.isdecimal() and int(version) >= NEW
    return inner and not untied


def _classes(fields: Fields) -> int:
    """How many it tells apart: as many as have a label."""
    labels = fields.own("id2label")
    usual = len(labels) if isinstance(labels, (Mapping, list)) and labels else USUAL_CLASSES
    return fields.whole("num_labels", default=usual, high=MAX_VOCAB)
