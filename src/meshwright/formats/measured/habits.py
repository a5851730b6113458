"""What a framework of a time does where a source is silent."""

from __future__ import annotations

from dataclasses import dataclass, replace

ONLY_CORE = 2025
"""Megatron-LM runs the models of Megatron-Core: the older ones left it during 2024."""
ALONE = 2023
"""DeepSpeed by itself drives models of Hugging Face; before, what it drove was Megatron-LM."""
FSDP2 = ("pytorch-compiled", "torchtitan-eager")
"""Frameworks that shard weights tensor by tensor."""
_XLA = ("maxtext", "jax", "xla", "levanter", "axlearn", "paxml")
_TORCH = (
    "fsdp",
    "torch",
    "composer",
    "foundry",
    "hugging",
    "deepspeed",
    "accelerate",
    "lightning",
    "litgpt",
    "olmo",
    "axolotl",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Defaults of a framework at the time of a publication."""

    name: str
    software: str
    """Name of the framework in the library."""
    sharding: str
    recompute: str
    """`none` as long as the prediction fits, `never`, or `full`."""
    flash: bool
    sequence_parallel: bool
    tp_overlap: str
    dp_overlap: bool
    interleaves: bool = False
    """Whether pipelines are interleaved where nothing is said."""
    chunks: int = 2
    """A worker's, of interleaved pipelines whose number of chunks is not said; less where layers do not divide."""
    deduplicates: bool = False
    """Whether tokens enter a node once on their way to experts."""
    context: str = "p2p"
    """How ranks of a sequence come by each other's keys and values."""
    short_gradients: bool = False
    """Whether gradients are kept and summed in 16 bits."""
    dtype: str = ""
    """What it computes in where a source leaves the format open; empty for what is usual at the time."""
    drops: bool = True
    """Whether its GPT layers drop activations and scores."""
    tokens: int = 0
    """Size of the vocabulary of the tokenizer that the scripts name, before padding; 0 for the model's own."""


def habits(framework: str, year: int, model: str = "") -> Habits:
    """The habits of a framework.

    Args:
        framework: the framework in the source's words.
        year: the year of the publication.
        model: its name; where torchtitan names no compiler, the config it ships for the model says whether it runs.

    Returns:
        Defaults by family: Megatron-Core shards the optimizer, runs fused attention and overlaps gradients; the code of
        Megatron-LM before it, and Megatron-DeepSpeed, write the scores to memory unless asked and sum gradients after
        the last backward. Before 2022 everything is recomputed and there is no sequence parallelism.

    Source: default arguments of NVIDIA/Megatron-LM, NVIDIA/NeMo, NVIDIA-NeMo/Megatron-Bridge,
    bigscience-workshop/Megatron-DeepSpeed, pytorch/torchtitan, mosaicml/llm-foundry and AI-Hypercomputer/maxtext.
    """
    text = framework.lower()
    torch = any(word in text for word in _TORCH)
    core = Habits(
        name="Megatron-Core",
        software="megatron-core",
        sharding="z1",
        recompute="none",
        flash=True,
        sequence_parallel=True,
        tp_overlap="bulk",
        dp_overlap=True,
    )
    if "nemo" in text or "bridge" in text:
        return replace(
            core,
            name="NVIDIA's performance recipes",
            tp_overlap="ring",
            short_gradients=True,
            deduplicates="bridge" in text,
        )
    if "megatron-core" in text or "mcore" in text or ("megatron-lm" in text and year >= ONLY_CORE):
        return replace(core, interleaves=True, deduplicates=year >= 2026)
    if "deepspeed" in text and ("megatron" in text or year < ALONE):
        old = replace(
            core,
            name="Megatron-DeepSpeed",
            software="megatron-deepspeed",
            sharding="z0",
            flash=False,
            sequence_parallel=False,
        )
        old = replace(old, tp_overlap="none", dp_overlap=False)
        # Its launch asks for no 16 bits, its validator counts 4 bytes a number (`fp16=False`, `float_size=4`), and its
        # llm_info.json has one copy of the scores a layer, and tables of 50,688 rows on 4 ranks for GPT-2's tokenizer,
        # which its scripts name for every model. Source: eth-easl/sailor at cf2c8e3.
        sailor = replace(old, name="Sailor's fork", dtype="fp32", drops=False, tokens=50257)
        return sailor if "sailor" in text else old
    if "megatron" in text and year < 2022:
        first = replace(
            core, name="Megatron-LM before 2022", software="megatron-lm", sharding="z0", recompute="full", flash=False
        )
        return replace(first, sequence_parallel=False, tp_overlap="none", dp_overlap=False)
    if "megatron" in text:
        return replace(core, name="Megatron-LM", software="megatron-lm", sharding="z0", flash=False, dp_overlap=False)
    if text.startswith("meta"):
        # arXiv 2407.21783, section 3.3.2: no activation checkpointing at 8,192 tokens, a layer less in the first and
        # last stage. Table 4 loses two points of utilisation from 32 to 16 sequences a rank: chunks of one layer.
        return replace(core, name="Meta's trainer of Llama 3", recompute="never", chunks=8)
    if any(word in text for word in _XLA):
        return replace(core, name="JAX", software="xla", sharding="fsdp", tp_overlap="ring")
    if "nanotron" in text:
        # Its column products gather beside the rank's own rows alone, its row products scatter behind the product; only
        # backward runs beside the other gradient. Source: parallel/tensor_parallel/functional.py of nanotron v0.5.
        return replace(core, name="nanotron", software="nanotron")
    if torch:
        titan = "titan" in text
        # train_configs of pytorch/torchtitan, April 2024 to January 2025: `compile = false`, but for llama3_405b.toml.
        asked = "405b" in model.lower() if titan else year >= 2024 and "torch" in text
        compiled = ("compile" in text or asked) and "eager" not in text
        software = "pytorch-compiled" if compiled else "torchtitan-eager" if titan else "pytorch-eager"
        name = "torchtitan" if titan else "PyTorch"
        return replace(core, name=name, software=software, sharding="fsdp", context="ag")
    modern = year >= 2022
    return replace(
        core,
        name=f"a framework of {year}",
        software="megatron-core" if modern else "megatron-lm",
        sharding="z1" if modern else "z0",
        recompute="none" if modern else "full",
        flash=modern,
        sequence_parallel=modern,
        tp_overlap="bulk" if modern else "none",
        dp_overlap=modern,
    )
