"""What may be trained in place of all weights where these do not fit: adapters, and adapters beside 4-bit weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.ops.counts import adapter_parameters
from meshwright.specs.model import ModelSpec
from meshwright.specs.tuning import ALL_LINEAR, STORED_BYTES, Lora, Tuning
from meshwright.units import significant

USUAL_RANK = 16
"""Of most published recipes: torchtune, axolotl, Unsloth, MLPerf."""
SMALLEST_BASE = "nf4"


def lighter(model: ModelSpec) -> Iterator[tuple[str, str, ModelSpec]]:
    """Trainings of less memory, the one nearest to what was asked first.

    Args:
        model: trained as it is asked for.

    Returns:
        What to say, what it means, and the model so trained.
    """
    asked = model.lora
    if asked is None and model.hidden > USUAL_RANK:
        asked = Lora(rank=USUAL_RANK)
        tuned = replace(model, tuning=Tuning(lora=asked))
        share = significant(adapter_parameters(tuned) / 1e6, 2)
        yield f"--lora {lora_option(asked)}", f"adapters of {share} M parameters instead of all weights", tuned
    if asked is None or STORED_BYTES.get(asked.base or "", 2.0) <= STORED_BYTES[SMALLEST_BASE]:
        return
    stored = replace(asked, base=SMALLEST_BASE)
    text = f"adapters beside weights stored in {8 * STORED_BYTES[SMALLEST_BASE]:.2g} bits"
    yield f"--lora {lora_option(stored)}", text, replace(model, tuning=Tuning(lora=stored))


def lora_option(lora: Lora) -> str:
    """Adapters as the command line takes them: `r=16,base=nf4`.

    Args:
        lora: the record.
    """
    words = [f"r={lora.rank}"]
    if lora.targets != (ALL_LINEAR,):
        words.append(f"targets={'+'.join(lora.targets)}")
    if lora.base:
        words.append(f"base={lora.base}")
    if lora.dropout:
        words.append(f"dropout={lora.dropout:g}")
    if lora.layers:
        words.append(f"layers={'+'.join(f'{first}-{last}' for first, last in lora.layers)}")
    if lora.train:
        words.append(f"train={'+'.join(lora.train)}")
    return ",".join([*words, *(["dora"] if lora.dora else [])])
