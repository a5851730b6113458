"""Free text of measured rows folded into the plan's own terms, each by how it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.precision import PRECISIONS, Precision
from meshwright.specs.strategy import HALF_PRODUCTS, RECOMPUTE_MODULES
from meshwright.specs.tuning import Lora, Tuning
from meshwright.units import GIB, MIB, rate_bytes_per_s


class Refused(ValueError):
    """A row asks for something that no plan can state or that is not priced; the message is the reason."""


def folded_sharding(text: str) -> tuple[str, int] | None:
    """What is sharded over data ranks, and the ranks of a shard group where it says so.

    Args:
        text: `1`, `1 (dist-opt)`, `3 (FSDP FULL_SHARD)`, `FSDP2 (ZeRO-3)`, `FSDP 128`, `HSDP (FSDP128 x DP4)`, ...

    Returns:
        A sharding of PlanRow and a group size (0 for all ranks); None where it is not stated.

    Raises:
        Refused: it is stated in words that are not understood.
    """
    lower = text.lower()
    if not lower or (lower.startswith("ddp") and "not stated" in lower):
        return None
    if hybrid := re.match(r"hsdp\D*(\d+)", lower):
        return "hsdp", int(hybrid[1])
    if "fsdp" in lower and "not resharded" in lower:
        return "fsdp-keep", 0
    if "fsdp" in lower:
        grouped = re.match(r"fsdp (\d+)", lower)
        return ("hsdp", int(grouped[1])) if grouped else ("fsdp", 0)
    if lower.startswith("ddp"):
        return "z0", 0
    if level := re.match(r"(?:zero-?)?([0-3])(?:\.0)?\b", lower):
        return f"z{level[1]}", 0
    raise Refused(f"zero_stage {text[:40]!r} is not understood")


def row_precision(text: str, *, year: int, notes: str = "") -> tuple[Precision, str]:
    """The recipe of a dtype in the source's words.

    Args:
        text: `bf16`, `amp_bf16`, `fp16/bf16 not stated`, `fp8-mx`, `mxfp8`, `nvfp4`, `int8 (AQT)`, ...
        year: the year of the publication, for a blank.
        notes: `PURE` mixed precision of PyTorch's FSDP also reduces gradients in 16 bits.

    Returns:
        The recipe, and what was assumed (empty where nothing was).

    Raises:
        Refused: it is none of these.
    """
    lower = text.lower().removeprefix("amp_")
    if not lower:
        name = "bf16" if year >= 2021 else "fp16"
        return PRECISIONS[name], f"{name}: not stated"
    if lower.startswith("fp16/bf16"):
        return PRECISIONS["fp16"], "fp16: 16 bits, which of the two formats is not stated"
    if lower.startswith(("nvfp4", "fp4", "mxfp4")):
        return PRECISIONS["nvfp4"], ""
    if lower.startswith(("fp8", "mxfp8")):
        return PRECISIONS["fp8"], ""
    for name in ("bf16", "fp16", "fp32", "int8"):
        if lower.startswith(name):
            found = PRECISIONS[name]
            if name == "bf16" and "fsdp prec pure" in notes.lower():
                return replace(found, name="bf16-pure", reduce="bf16"), ""
            return found, ""
    raise Refused(f"dtype {text[:40]!r} has no recipe")


def short_gradients(recipe: Precision) -> tuple[Precision, str]:
    """A recipe with gradients in 16 bits and, where products are fp8, weights kept and gathered in fp8 (both layouts).

    Source: `grad_reduce_in_fp32 = False` and `fp8_param_gather = True` in scripts/performance of NVIDIA/NeMo and
    NVIDIA-NeMo/Megatron-Bridge.
    """
    if recipe.name not in ("bf16", "fp8", "nvfp4"):
        return recipe, ""
    short = replace(recipe, name=f"{recipe.name}-short", gradients="bf16", reduce="bf16", weight_cache_bytes=0.0)
    if recipe.name == "fp8":
        short = replace(short, gathered="fp8")
    return short, "16 bits: usual in NVIDIA's performance recipes"


def narrow_gathers(recipe: Precision) -> tuple[Precision, str]:
    """An fp8 recipe as torchtitan runs it: weights cross the network in fp8.

    Source: `enable_fsdp_float8_all_gather` in docs/float8.md of pytorch/torchtitan.
    """
    if recipe.name != "fp8":
        return recipe, ""
    return replace(recipe, name="fp8-gathered", gathered="fp8"), "fp8: usual in torchtitan"


def engine_gradients(recipe: Precision, text: str) -> tuple[Precision, str]:
    """A bf16 recipe as DeepSpeed's pipeline engine runs it: gradients in 16 bits, and their fp32 sums beside them where
    the source says that they are accumulated so.

    Source: deepspeed/runtime/bf16_optimizer.py and zero/stage_1_and_2.py of microsoft/DeepSpeed.
    """
    if recipe.name != "bf16":
        return recipe, ""
    summed = "fp32 grad" in text.lower()
    name = "bf16-engine-summed" if summed else "bf16-engine"
    kept = replace(recipe, name=name, gradients="bf16", reduce="bf16", master_gradient_copy=summed, sums_in_copy=summed)
    return kept, "" if summed else "16 bits: usual in DeepSpeed's engine"


def kept_in_8_bits(recipe: Precision, notes: str) -> tuple[Precision, str]:
    """A recipe of fp8 as fine-tuning submissions run it: inputs of SwiGLU kept in 8 bits, and of fp8 attention too.

    Args:
        recipe: the recipe of the row.
        notes: say `fp8 attention` where attention computes in fp8.

    Source: `FP8_ACTIVATION` and `FP8_DPA` in configurations of Llama 2 70B LoRA in mlcommons/training_results_v5.0.
    """
    if DTYPE_BYTES[recipe.compute] != 1:
        return recipe, ""
    attention = "fp8" if "fp8 attention" in notes.lower() else None
    short = replace(recipe, name=f"{recipe.name}-kept", function_inputs="fp8", attention_inputs=attention)
    return short, "inputs of SwiGLU in fp8: usual in MLPerf's fine-tuning submissions"


def stated_memory_bytes(notes: str, product_bytes: float) -> float:
    """Memory of a device as the driver counts it, where notes state it: `memory stated as 143771 MiB`, `141 GB`.

    Args:
        notes: the notes of the row.
        product_bytes: the product bytes of the product, in decimal gigabytes a few percent below what is there. A
            figure below it, or more than an eighth above, is of another part.
    """
    found = re.search(r"memory stated as (\d+) (mib|gb)", notes.lower())
    if found is None:
        return product_bytes
    stated = float(found[1]) * (MIB if found[2] == "mib" else GIB)
    return stated if product_bytes <= stated <= 1.125 * product_bytes else product_bytes


_TARGETS = {"attention projections": ("linear_qkv", "linear_proj"), "all projections": ("all-linear",)}


def adapters(text: str, dtype: str) -> Tuning | None:
    """What a fine-tuning run trained, None for a row of full training.

    Args:
        text: name of the model, notes and source of its shape, in lower case: `adapters of rank 16 on attention
            projections`, `lora dim 16 on all projections`, `dropout 0.1`.
        dtype: frozen weights are kept in fp8 where products are, as NVIDIA's `fp8_params` does.

    Raises:
        Refused: a fine-tuning run that does not say what it trained, or whose log contradicts its configuration.

    Source: configurations of Llama 2 70B LoRA in mlcommons/training_results_v4.0, v4.1 and v5.0: rank 16, dropout 0.1.
    """
    named = re.search(r"(?<![\w-])(lora|sft|fine-tuning)(?![\w-])", text)
    if named is None:
        return None
    found = re.search(r"(?:rank|dim) (\d+) on (attention projections|all projections)", text)
    if found is None:
        raise Refused(f"{named[1]}: what is trained is not stated")
    if contradicted := re.search(r"grad_accum=\d+ \(log says \d+\)", text):
        raise Refused(f"{contradicted[0]}: the configuration is not the one that ran")
    dropout = 0.1 if "llama2_70b_lora" in text else 0.0
    base = "fp8" if dtype.lower().startswith("fp8") else None
    return Tuning(lora=Lora(rank=int(found[1]), targets=_TARGETS[found[2]], base=base, dropout=dropout))


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What is recomputed: a mode of PlanRow, modules for `sel`, layers for `block`, or a share of the layers."""

    mode: str
    modules: tuple[str, ...] = ()
    layers: int = 0
    share: float = 0.0
    assumed: str = ""


_MODULE_NAMES = {
    "up_proj": "mla_up_proj",
    "core_attention": "core_attn",
    "norm": "layernorm",
    "act": "moe_act",
    "shared_expert": "shared_experts",
}


def recompute(text: str, detail: str) -> Again | None:
    """Recompute in the source's words.

    Args:
        text: starts with `none`, `full` or `selective`, or names a rematerialisation policy.
        detail: modules (`moe_act, layernorm`) or a recipe's settings (`recompute_modules=['mla_up_proj'] ...`).

    Returns:
        What is recomputed, None where it is not stated.

    Raises:
        Refused: it is stated in words that are not understood.
    """
    lower = text.lower()
    if blocked := re.search(r"recompute_num_layers=(\d+)", detail):
        return Again(mode="block", layers=int(blocked[1]))
    if not lower:
        return None
    if lower.startswith("none"):
        return Again(mode="none")
    if lower.startswith("full"):
        return Again(mode="full")
    if re.search(r"remat_policy=(minimal|save_dot)", lower):
        assumed = "sel: all but the outputs of products with weights"
        return Again(mode="sel", modules=("core_attn", "layernorm"), assumed=assumed)
    if "remat" in lower:
        return Again(mode="full", assumed=f"full: {text} keeps little more than the inputs of layers")
    if lower.startswith("selective"):
        if "2nd" in lower or "(layer)" in lower:
            return Again(mode="block", share=0.5, assumed="block: every second layer, as the first half of each chunk")
        if "per-op" in lower or "torchtitan" in lower:
            return Again(mode="sel", modules=(HALF_PRODUCTS,))
        listed = re.search(r"recompute_modules=\[([^\]]*)\]", detail)
        words = re.findall(r"[a-z_]+", (listed[1] if listed else "" if "=" in detail else detail).lower())
        modules = tuple(dict.fromkeys(_MODULE_NAMES.get(word, word) for word in words))
        known = tuple(module for module in modules if module in RECOMPUTE_MODULES)
        if modules != known:
            raise Refused(f"recompute of {', '.join(sorted({*modules} - {*known}))} has no rule")
        return Again(
            mode="sel", modules=known or ("core_attn",), assumed="" if known else "core attention: the usual module"
        )
    raise Refused(f"recompute {text[:40]!r} is not understood")


# The searched schedules of the zero-bubble papers, with the memory of one and of two pipelines of activations, as their
# handcrafted forms of the same memory, whose updates are validated behind the step: of ZB-H1 the first worker spans the
# step anyway. Source: Qi et al. 2024 (arXiv 2401.10241), section 4.
_ZERO_BUBBLE = (
    ("zb-1p", "zb-h1"),
    ("zb-h1", "zb-h1"),
    ("zb-2p", "zb-h2-post"),
    ("zb-h2", "zb-h2"),
    ("zb-v", "zb-v"),
    ("v-half", "v-half"),
    ("v-min", "v-min"),
    ("dualpipev", "dualpipev"),
    ("dualpipe", "dualpipe"),
)


def row_schedule(text: str, *, pp: int, vpp: int | None) -> tuple[str, int | None]:
    """Name of the pipeline schedule, and the chunks per worker (None: interleaved, count not stated).

    Raises:
        Refused: a schedule that is not priced.
    """
    lower = text.lower()
    if pp == 1:
        return "1f1b", 1
    for start, name in _ZERO_BUBBLE:
        if lower.startswith(start):
            return name, 2 if name in ("zb-v", "v-half", "v-min", "dualpipev") else 1
    if lower.startswith(("zb", "zero", "chimera", "hanayo")):
        raise Refused(f"schedule {text[:40]!r} is not priced")
    if vpp is not None and (vpp > 1 or not lower.startswith("gpipe")):
        return ("interleaved", vpp) if vpp > 1 else ("1f1b", 1)
    if "interleav" in lower or lower.startswith("1f1b-i"):
        return "interleaved", None
    if lower.startswith("gpipe"):
        return "gpipe", 1
    if not lower or lower.startswith("1f1b"):
        return "1f1b", 1
    raise Refused(f"schedule {text[:40]!r} is not understood")


def more_activations(text: str, pp: int) -> float:
    """Activations of ZB-2p beyond those of ZB-H2, as which it is read, over these: 1 / (2 p - 1).

    Its search goes up to those of 2 p micro-batches; the handcrafted schedule has 2 p - 1 in flight.

    Args:
        text: the schedule in the source's words.
        pp: pipeline degree p.

    Source: Qi et al. 2024 (arXiv 2401.10241), section 4 and table 4.
    """
    return 1 / (2 * pp - 1) if text.lower().startswith("zb-2p") else 0.0


def flash(text: str) -> bool | None:
    """Whether attention is fused, None where it is not stated."""
    lower = text.lower()
    if not lower:
        return None
    stored = ("standard", "unfused", "fused softmax", "local", "eager", "math")
    return "flash" in lower or not any(word in lower for word in stored)


GENERATIONS = {"volta": "V100-SXM", "ampere": "A100-SXM", "hopper": "H100-SXM", "blackwell": "B200"}
"""The training device of each NVIDIA generation, for sources that name the generation alone."""


def device_name(text: str, memory_gb: float | None) -> tuple[str, str]:
    """The device in the source's words, and what was inferred: `"Ampere"` with 80 GB is an A100-SXM.

    Args:
        text: the text of the row; quotes around it are the source's.
        memory_gb: the memory in GB of one device, None where it is not stated.
    """
    plain = text.strip(" \"'\u201c\u201d\u2018\u2019")
    device = GENERATIONS.get(plain.lower())
    if device is None:
        return plain, ""
    size = f" of {memory_gb:g} GB" if memory_gb else ""
    return device, f"{device}{size}: the training device of the {plain.capitalize()} generation"


NVLINKS = {"2": 6, "3": 12, "4": 18}
"""Links of a device by NVLink generation. Source: NVIDIA's data sheets of V100, A100 and H100."""


def board_devices(text: str) -> int | None:
    """Devices on a board whose NVLinks join them directly, without a switch: `NVLink3 (4 NVLinks per pair)` is four.

    A node of two such boards joins them by PCIe. None where no links per pair are named.
    """
    match = re.search(r"nvlink([234])\D.*?(\d+) nvlinks? per pair", text.lower())
    return None if match is None else 1 + NVLINKS[match[1]] // int(match[2])


_RATE = re.compile(r"(?<!\d)(?:(\d{1,6})\s*x\s*)?(\d+(?:\.\d+)?\s*[KMGTkmgt]i?(?:b|B|[Bb]its?|[Bb]ytes?)(?:ps|/s))\b")


def fabric_bytes_per_s(text: str, devices_per_node: int) -> float | None:
    """Bytes/s per device between nodes; None without a speed.

    The case of the unit tells bits from bytes: `400Gb/s NDR IB per GPU`, `8x200Gb/s HDR IB per node`, `1600Gbps`, and
    `8x50GB/s IB per node`, whose eight interfaces carry 50 gigabytes each; `GiB/s` counts 2^30 bytes.

    Args:
        text: the link in the source's words.
        devices_per_node: the devices per node that share what is stated per node.
    """
    match = _RATE.search(text)
    if match is None:
        return None
    each = rate_bytes_per_s(match[2], network=True)
    if each is None:
        return None
    total = int(match[1] or 1) * each
    return total if "per gpu" in text.lower() else total / devices_per_node


def release_month(text: str) -> str | None:
    """The month of the first release named by year and month, `NeMo Framework Release 24.09` or `v25.05.05`, or else in
    words: `Dec-2024`, `December 2024`."""
    found = re.search(r"(?<![\d.])v?(2\d)\.(0[1-9]|1[0-2])(?:\.\d{1,2})?(?![\d.])", text)
    if found:
        return f"20{found[1]}-{found[2]}"
    said = re.search(rf"\b({'|'.join(_MONTHS)})[a-z]*[- ](20\d\d)\b", text.lower())
    return f"{said[2]}-{_MONTHS.index(said[1]) + 1:02}" if said else None


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
