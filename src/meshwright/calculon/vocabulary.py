"""Embedding and head of applications that name a vocabulary; Calculon prices neither.

The head is a product of tokens with the vocabulary and a softmax over it, in the last stage once per micro-batch; its
weights and logits split over tensor ranks. As every micro-batch waits for the last stage, its time adds to each. The
embedding's look-up moves rows of a table. A stage holds one table: the first one the embedding, the last one the head;
a single stage holds one table that both share (gpt) or two (llama), and the logits with their gradient.

Source: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3 (the vocabulary split over tensor ranks).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.calculon.inputs import DATATYPE_BYTES
from meshwright.calculon.layer_times import Engines
from meshwright.calculon.layers import ADAM_FLOP_PER_WEIGHT, MASTER_BYTES, optimizer_bytes_per_weight
from meshwright.calculon.rows import Column, ExecutionRows
from meshwright.calculon.traffic import traffic_s

SOFTMAX_FLOP = 5
LOGIT_BYTES = 4
"""Logits and their gradient are float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyTimes:
    """What embedding and head add to a batch's time, per row."""

    fw_s: Column
    bw_s: Column
    optimizer_s: Column
    traffic_s: Column
    """Data-parallel traffic of a table; nothing is left to hide it behind."""
    flop: Column
    """Useful flop of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularySpaces:
    """What embedding and head add to a processor's memory, bytes per row."""

    weights: Column
    weight_grads: Column
    optimizer: Column
    logits: Column


def _tables(rows: ExecutionRows) -> tuple[Column, Column]:
    """Words of a rank's part of the vocabulary, and weights of the tables a stage holds."""
    app, columns = rows.prepared.app, rows.columns
    assert app.vocab_size is not None
    words = np.ceil(app.vocab_size / columns.tensor_par)
    two = (columns.pipeline_par == 1) & (app.structure_type == "llama")
    return words, np.where(two, 2.0, 1.0) * words * app.hidden


def vocabulary_times(rows: ExecutionRows) -> VocabularyTimes | None:
    """Times of embedding and head; none where the application names no vocabulary."""
    app, columns = rows.prepared.app, rows.columns
    if app.vocab_size is None:
        return None
    engines = Engines(system=rows.prepared.system, datatype=columns.datatype)
    n, element = rows.micro_batches, np.asarray(DATATYPE_BYTES)[columns.datatype]
    tokens = (columns.microbatch_size * app.seq_size).astype(np.float64)
    words, weights = _tables(rows)
    logits = tokens * words

    flop = 2 * logits * app.hidden
    moved = ((tokens + words) * app.hidden + logits) * element
    product_s = engines.join_s(engines.compute_s(flop, matrix=True), engines.memory_s(moved))
    softmax_s = engines.join_s(
        engines.compute_s(SOFTMAX_FLOP * logits, matrix=False), engines.memory_s(2 * logits * LOGIT_BYTES)
    )
    lookup_s = engines.memory_s(2 * tokens * app.hidden * element)
    shards = np.where(columns.optimizer_sharding, columns.data_par, 1)
    step_s = engines.join_s(
        engines.compute_s(ADAM_FLOP_PER_WEIGHT * weights / shards, matrix=False),
        engines.memory_s(optimizer_bytes_per_weight(element) * weights / shards),
    )
    replicated = columns.training & (columns.data_par > 1)
    return VocabularyTimes(
        fw_s=n * (product_s + softmax_s + lookup_s),
        bw_s=rows.in_training(n * (2 * product_s + softmax_s + lookup_s)),
        optimizer_s=rows.in_training(step_s),
        traffic_s=np.where(replicated, traffic_s(rows, weights * element), 0.0),
        flop=n * (flop + rows.in_training(2 * flop)),
    )


def vocabulary_spaces(rows: ExecutionRows) -> VocabularySpaces | None:
    """Memory of embedding and head; none where the application names no vocabulary."""
    app, columns = rows.prepared.app, rows.columns
    if app.vocab_size is None:
        return None
    element = np.asarray(DATATYPE_BYTES)[columns.datatype]
    words, weights = _tables(rows)
    shards = np.where(columns.optimizer_sharding, columns.data_par, 1)
    logits = columns.microbatch_size * app.seq_size * words * LOGIT_BYTES
    copies = np.where(columns.training, 2.0, 1.0)
    gradient_bytes = MASTER_BYTES if rows.prepared.fixed else element / shards
    return VocabularySpaces(
        weights=weights * element,
        weight_grads=rows.in_training(weights * gradient_bytes),
        optimizer=rows.in_training(optimizer_bytes_per_weight(element) * weights / shards),
        logits=np.where(columns.pipeline_par == 1, logits * copies, 0.0),
    )
