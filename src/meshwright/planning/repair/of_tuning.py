"""What may be trained in place of all weights where these do not fit: adapters, and adapters beside 4-bit weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.ops.counts import adapter_parameters
from meshwright.planning.axes.offload import offload_text, spelled
from meshwright.planning.for_target import software_of
from meshwright.planning.one_kind import SpaceFor
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.software import DEFAULT_SOFTWARE, PEFT_SOFTWARE, usual_software
from meshwright.specs.tuning import ALL_LINEAR, STORED_BYTES, Lora, Tuning
from meshwright.specs.workload import Workload
from meshwright.targets import TARGETS
from meshwright.units import significant

USUAL_RANK = 16
"""Rank of most published recipes: torchtune, axolotl, Unsloth, MLPerf."""
SMALLEST_BASE = "nf4"
USUAL_TRAINER = "accelerate"
UNSLOTH = "unsloth"
UNSLOTH_STEPS = ((4, ""), (64, "a"))
"""Pieces of the loss, of which it makes as many as free memory asks for, at least 4 (unsloth_zoo 2026.10.9,
fused_losses/cross_entropy_loss.py); and what lies in host memory: the checkpoints of its layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Otherwise:
    """What another training starts from where the trainer was chosen for the one that was asked for."""

    model: ModelSpec
    """The model as it was asked for."""
    space_for: SpaceFor
    """The space that the question leaves to every trainer."""


def lighter(
    model: ModelSpec, workload: Workload, *, software_given: bool
) -> Iterator[tuple[str, str, ModelSpec, Workload]]:
    """Trainings of less memory, the one nearest to what was asked first.

    Args:
        model: trained as it is asked for.
        workload: the step.
        software_given: whether its framework is stated; else it is the usual one of what is trained.

    Returns:
        What to say, what it means, the model so trained, and the step under the framework that it is priced with.
    """

    def under(lora: Lora) -> Workload:
        if software_given:
            return workload
        # Trainers of Megatron-Core have adapters on fused products alone; those of PEFT have all of them.
        peft = lora.base is None and workload.software == DEFAULT_SOFTWARE
        own = software_of(TARGETS[USUAL_TRAINER], None) if peft else usual_software(lora.base, workload.software)
        return replace(workload, software=own)

    asked = model.lora
    if asked is None and model.hidden > USUAL_RANK:
        asked = Lora(rank=USUAL_RANK)
        tuned = replace(model, tuning=Tuning(lora=asked))
        share = significant(adapter_parameters(tuned) / 1e6, 2)
        yield (
            f"--lora {lora_option(asked)}",
            f"adapters of {share} M parameters instead of all weights",
            tuned,
            under(asked),
        )
    if asked is None or STORED_BYTES.get(asked.base or "", 2.0) <= STORED_BYTES[SMALLEST_BASE]:
        return
    stored = replace(asked, base=SMALLEST_BASE)
    text = f"adapters beside weights stored in {8 * STORED_BYTES[SMALLEST_BASE]:.2g} bits"
    step = under(stored)
    if step.software != workload.software:
        text += f" under {step.software}"
    tuned = replace(model, tuning=Tuning(lora=stored))
    yield f"--lora {lora_option(stored)}", text, tuned, step
    if step.software.partition("@")[0] != PEFT_SOFTWARE:
        # Of the framework that was stated no trainer may store weights so.
        option = f"--lora {lora_option(stored)} --software {PEFT_SOFTWARE}"
        yield option, f"{text} under {PEFT_SOFTWARE}", tuned, replace(step, software=PEFT_SOFTWARE)


def under_unsloth(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> Iterator[tuple[str, str, str, Workload]]:
    """Steps as Unsloth makes them, which hold less of tables, head and logits: the one that is nearest first.

    Args:
        model: trained as it is asked for.
        cluster: the cluster of one kind of device.
        workload: the step.

    Returns:
        What to say, what it means, what lies in host memory, and the step; none of what it is not known to train: all
        but adapters on dense text models on one GPU.
    """
    lora, device = model.lora, cluster.groups[0].device
    known = lora is not None and not lora.dora and lora.base in (None, SMALLEST_BASE)
    if not known or cluster.devices > 1 or device.vendor != "NVIDIA" or model.is_moe or model.beside_decoder:
        return
    for pieces, away in UNSLOTH_STEPS:
        tiles = max(workload.loss_tiles, pieces)
        more = "" if workload.loss_tiles == tiles else f" --loss-tiles {tiles}"
        text = "as Unsloth trains, in a script of your own: the base as it is loaded, logits in pieces"
        step = replace(workload, software=UNSLOTH, loss_tiles=tiles)
        if away:
            more, text = f"{more} {spelled(away)}", f"{text}, {offload_text(away)}"
        yield f"--software {UNSLOTH}{more}", text, away, step


def lora_option(lora: Lora) -> str:
    """Adapters as the command line takes them: `r=16,base=nf4`.

    Args:
        lora: the record.
    """
    words = {
        "targets": "+".join(lora.targets) if lora.targets != (ALL_LINEAR,) else "",
        "target_parameters": "+".join(lora.parameters),
        "rank_pattern": "+".join(f"{name}:{rank}" for name, rank in lora.ranks),
        "base": lora.base or "",
        "dropout": f"{lora.dropout:g}" if lora.dropout else "",
        "layers": "+".join(f"{first}-{last}" for first, last in lora.layers),
        "skip": "+".join(lora.skip),
        "train": "+".join(lora.train),
    }
    stated = [f"{name}={value}" for name, value in words.items() if value]
    return ",".join([f"r={lora.rank}", *stated, *(["dora"] if lora.dora else [])])
