"""Heads that predict no words: classes, rewards and nothing, by the class of a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from meshwright.formats.huggingface.fields import MAX_VOCAB, Fields
from meshwright.specs.model import ModelSpec

MLM = "trained to predict masked tokens at every position"
"""What is said of an encoder with the head of BERT's pretraining."""

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
        name: the name of its class.

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


POOLED = ("ForSequenceClassification", "ForMultipleChoice")
"""Endings of classes of encoders that score a sample, by its first token behind a square matrix."""
SPANS = {"ForQuestionAnswering": 2, "ForTokenClassification": 0}
"""Endings of those that score each token, and how many scores where labels do not say it."""
BARE = {
    **dict.fromkeys(("Bert", "Camembert", "Data2VecText", "Ernie", "Esm", "MPNet", "MegatronBert", "New"), True),
    **dict.fromkeys(("Roberta", "RobertaPreLayerNorm", "XLMRoberta", "XLMRobertaXL"), True),
    **dict.fromkeys(("DebertaV2", "DistilBert", "Electra", "LayoutLM", "ModernBert", "NomicBert", "RoFormer"), False),
}
"""Families whose bare model is published for embeddings, and whether it has a pooler: a square matrix over the first
token."""


_TYPES = {
    "Bert": "bert",
    "Camembert": "camembert",
    "DebertaV2": "deberta-v2",
    "DistilBert": "distilbert",
    "Electra": "electra",
    "MPNet": "mpnet",
    "ModernBert": "modernbert",
    "NomicBert": "nomic_bert",
    "Roberta": "roberta",
    "XLMRoberta": "xlm-roberta",
}
"""`model_type` by the start of a class's name."""


def encoder_of_class(config: Mapping[str, object]) -> str | None:
    """The `model_type` of an encoder whose config leaves it to its class, as files of remote code do.

    Args:
        config: the config, without `model_type`.
    """
    said = config.get("architectures")
    name = said[0] if isinstance(said, list) and said and isinstance(said[0], str) else ""
    return _TYPES.get(re.sub(r"(For[A-Z].*|Model)$", "", name))


def with_head_of_encoder(fields: Fields, model: ModelSpec) -> ModelSpec:
    """An encoder with the head of its class, where that predicts no masked tokens.

    Args:
        fields: the config's fields.
        model: the model with the head of BERT's pretraining.

    Returns:
        The same for a class that predicts masked tokens, and for one that is not known.

    Source: modelling classes of transformers 5.23.0: BERT, RoBERTa, MPNet, ELECTRA, DeBERTa 2, DistilBERT, ModernBERT.
    """
    said = fields.raw("architectures")
    name = said[0] if isinstance(said, list) and said and isinstance(said[0], str) else ""
    bare = name.removesuffix("Model")
    kept = tuple(note for note in model.notes if note != MLM)
    plain = replace(model, tied_embeddings=False, final_norm=None, head_bias=True, notes=kept)
    if name.endswith(POOLED):
        count = 1 if name.endswith(POOLED[1]) else _classes(fields)
        note = f"{name}: {count} score{'s' * (count > 1)} a sample, whose head is priced as if on every token"
        square = model.family != "layoutlm"  # whose pooler is counted with its tables
        return replace(plain, classes=count, head_transform=square, notes=(*kept, note))
    ending = next((ending for ending in SPANS if name.endswith(ending)), None)
    if ending is not None:
        count = SPANS[ending] or _classes(fields)
        square = model.family == "modernbert"
        note = f"{name}: its head scores {count} classes a token in place of words"
        return replace(plain, classes=count, head_transform=square, notes=(*kept, note))
    if bare != name and bare in BARE:
        note = f"{name} has no head: what its loss does with the vectors of samples is not counted"
        pooler = BARE[bare]
        return replace(plain, classes=0, head_bias=False, head_transform=pooler, notes=(*kept, note))
    return model


def _classes(fields: Fields) -> int:
    """How many it tells apart: as many as have a label."""
    labels = fields.own("id2label")
    usual = len(labels) if isinstance(labels, (Mapping, list)) and labels else USUAL_CLASSES
    return fields.whole("num_labels", default=usual, high=MAX_VOCAB)
