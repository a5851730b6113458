"""Heads that predict no words: classes, rewards and nothing, by the class of a config."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.fields import MAX_VOCAB, Fields

BIASED = {"ForSequenceClassification": False, "ForTokenClassification": True}
"""Endings of classes that score classes, and whether the scores have biases."""
USUAL_CLASSES = 2
"""Classes where a config names none, as in transformers."""


def read_head(fields: Fields, name: str) -> dict[str, object]:
    """The model's fields about its head, where that predicts no words; none of them where it does.

    A class such as `MistralModel` ends at the last norm, and `LlamaForSequenceClassification` has scores in place of
    words; both are published for embeddings, rewards and reranking, with the table of a language model's config. A
    class of remote code keeps its name whatever it holds, so that one that `auto_map` calls causal is read as such.

    Args:
        fields: the config's fields.
        name: of its class.

    Source: transformers 5.24.0, modeling_layers.py (GenericForSequenceClassification, GenericForTokenClassification).
    """
    ending = next((ending for ending in BIASED if name.endswith(ending)), None)
    if ending is not None:
        count = _classes(fields)
        many = f"{count} classes" if count > 1 else "one number"
        fields.remark(f"{name}: its head scores {many} a token in place of words")
        return {"tied_embeddings": False, "head_bias": BIASED[ending], "classes": count}
    remote = fields.own("auto_map")
    causal = isinstance(remote, Mapping) and any("LM" in str(key) for key in remote)
    if name.endswith("Model") and not causal and not fields.flag("lm_head", default=False):
        fields.remark(f"{name} has no head: what its loss does with the vectors of samples is not counted")
        return {"tied_embeddings": False, "head_bias": False, "classes": 0}
    return {}


def _classes(fields: Fields) -> int:
    """How many it tells apart: as many as have a label."""
    labels = fields.own("id2label")
    usual = len(labels) if isinstance(labels, (Mapping, list)) and labels else USUAL_CLASSES
    return fields.whole("num_labels", default=usual, high=MAX_VOCAB)
