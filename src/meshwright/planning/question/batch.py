"""Length and number of the sequences of a step: as they are asked for, or chosen where nobody says."""

from __future__ import annotations

from meshwright.errors import InputError, Problem
from meshwright.fields.job import (
    DEFAULT_SEQ_LEN,
    DEFAULT_TOKENS_PER_STEP,
    FEWEST_TOKENS_PER_DEVICE,
    TOKENS_PER_DEVICE,
)
from meshwright.formats.cluster import Assumption
from meshwright.specs.lengths import Lengths
from meshwright.specs.model import ModelSpec

BATCH_TOLERANCE = 0.05
"""How far a batch that nobody gave may be rounded to one that more degrees divide."""
MIXED_POWER = 16
"""Power of two that a batch keeps on several groups, whose sum (4 x 8 + 7 + 64 = 103) is no degree of theirs."""
MAX_BATCH = 2**20
"""Sequences of a step: far above what anybody trains with, and every schedule of it can still be simulated."""
ROW_STEP = 128
"""Tokens to whose multiples rows are rounded up where nobody says their length, so that degrees divide it."""
DEFAULT_SAMPLES = 4096
"""Samples in the default step of a model with one prediction per sample, as vision
transformers are trained (Steiner et al. 2021)."""
MAX_SEQ_LEN = 2**27
"""Tokens of a sequence: LTM-2 of Magic has 100 million (magic.dev, August 2024)."""


def sensible_batch(target: float, devices: int, tolerance: float = BATCH_TOLERANCE, power: int = 1) -> int:
    """The batch near a target that most data-parallel degrees divide.

    Of the multiples of (odd part of the devices) x 2^k within the tolerance, the nearest one of the largest k; without
    the odd part where no such multiple is near, or only of smaller powers of two than asked for.

    Args:
        target: sequences, not necessarily whole.
        devices: the number of devices of the cluster.
        tolerance: largest relative distance.
        power: least power of two beside the odd part.

    Returns:
        Sequences, at least 1.
    """
    odd = devices
    while odd % 2 == 0:
        odd //= 2
    for base, least in ((odd, odd * power), (1, 1)):
        step = base
        while step * 2 <= target * (1 + tolerance):
            step *= 2
        while step >= least:
            near = max(1, round(target / step)) * step
            if abs(near - target) <= tolerance * target:
                return near
            step = step // 2 if step % 2 == 0 and step > base else 0
    return max(1, round(target))


def check_batch(batch: int) -> None:
    """Refuse a step of more sequences than can be planned.

    Raises:
        InputError: it has more than `MAX_BATCH`.
    """
    if batch <= MAX_BATCH:
        return
    what, why = f"a step of {batch:,} sequences", f"at most {MAX_BATCH:,} sequences can be planned"
    raise InputError(what=what, why=why, fix="use a smaller batch", field="global_batch", code="MW204")


def sequence_length(seq: int | None, model: ModelSpec, lengths: Lengths, notes: list[Assumption]) -> int:
    """Tokens of a sequence, or of a row of several.

    Args:
        seq: the sequence length as asked for, None where nobody says.
        model: the model whose longest sequence counts.
        lengths: those of the data and their shares, shortest first, where they are stated.
        notes: what is assumed is added.

    Raises:
        InputError: nobody plans sequences as long, or the model has none.
    """
    if model.pooled and seq in (None, 1):
        return 1
    if seq is not None and seq > MAX_SEQ_LEN:
        problem = Problem(
            what=f"a sequence of {seq:,} tokens",
            why=f"at most {MAX_SEQ_LEN:,} are planned: the longest that any model was trained on have 100 million",
            fix="give the tokens of one sequence; those of a step are --tokens-per-step, those of the run --tokens",
            field="seq_len",
        )
        raise InputError(problem, code="MW204")
    if seq is None and lengths:
        whole = -(-lengths[-1][0] // ROW_STEP) * ROW_STEP
        seq = min(whole, model.learned_positions or whole)
        value = f"rows of {seq:,} tokens (the longest sequence, {lengths[-1][0]:,}, to whole {ROW_STEP})"
        notes.append(Assumption(name="seq_len", value=value, basis="assumed"))
    if seq is None:
        seq = min(DEFAULT_SEQ_LEN, model.max_seq_len)
        rule = "the model's maximum" if seq < DEFAULT_SEQ_LEN else "default"
        notes.append(Assumption(name="seq_len", value=f"{seq:,} tokens ({rule})", basis="assumed"))
        return seq
    if model.pooled:
        why = f"{model.name} makes one prediction per sample, whose size its config states"
        raise InputError(what=f"seq_len is {seq:,}", why=why, fix="leave --seq out", field="seq_len")
    if model.learned_positions and seq > model.learned_positions:
        raise InputError(
            what=f"seq_len is {seq:,}",
            why=f"{model.name} has learned positions for {model.learned_positions:,} tokens",
            fix=f"use --seq {model.learned_positions} or less",
            field="seq_len",
        )
    if seq > model.max_seq_len:
        longest = f"{model.max_seq_len:,}"
        value = f"{seq:,} tokens, longer than the {longest} that {model.name} states: costs are priced, quality is not"
        notes.append(Assumption(name="seq_len", value=value, basis="extrapolated"))
    return seq


def usual_tokens(devices: int) -> int:
    """Tokens of a step where nobody says.

        min(65,536 N, max(4,194,304, 1,024 N))

    Args:
        devices: N, of the cluster.
    """
    fewest = max(DEFAULT_TOKENS_PER_STEP, FEWEST_TOKENS_PER_DEVICE * devices)
    return min(TOKENS_PER_DEVICE * devices, fewest)


def default_batch(
    seq: float,
    per_step: int | None,
    devices: int,
    notes: list[Assumption],
    usual: int,
    noun: str,
    *,
    several: bool = False,
) -> int:
    """Sequences of a step whose number nobody gave.

    Args:
        seq: tokens of a sequence.
        per_step: tokens of a step, as asked for; None where nobody says.
        devices: the number of devices of the cluster.
        notes: what is assumed is added.
        usual: tokens of a step where nobody says.
        noun: what a step has several of, as people read it.
        several: whether the devices are of several groups.
    """
    wanted = per_step or usual
    # Very short sequences would make steps of more sequences than can be planned.
    exact = wanted / seq if per_step else min(wanted / seq, MAX_BATCH)
    batch = (
        int(exact)
        if per_step and exact.is_integer()
        else sensible_batch(exact, devices, power=MIXED_POWER if several else 1)
    )
    ratio = wanted / seq
    shown = f"{ratio:,.0f}" if ratio.is_integer() else f"{ratio:,.1f}"
    of_each = next((one for one in (TOKENS_PER_DEVICE, FEWEST_TOKENS_PER_DEVICE) if wanted == one * devices), None)
    each = f" ({of_each:,} per device)" if not per_step and of_each and wanted != DEFAULT_TOKENS_PER_STEP else ""
    said = f"{wanted:,} tokens per step{each} / {seq:,.0f} = {shown}"
    if not per_step and ratio > MAX_BATCH:
        capped = f"{batch:,} {noun} = {batch * seq:,.0f} tokens ({said}, capped: at most {MAX_BATCH:,} can be planned)"
        notes.append(Assumption(name="global_batch", value=capped, basis="assumed"))
        return batch
    if batch == exact:
        if per_step is None:
            notes.append(Assumption(name="global_batch", value=f"{batch:,} {noun} ({said}, default)", basis="assumed"))
        return batch
    rounded = f"{batch:,} {noun} = {batch * seq:,.0f} tokens ({said}, rounded so that more degrees divide it)"
    notes.append(Assumption(name="global_batch", value=rounded, basis="assumed"))
    return batch
