"""What tables of NVIDIA's leave open and the scripts that made them say.

Its tables print degrees, batches and formats; what is recomputed, how tokens travel, what overlaps and what graphs
capture stands in the code beside them. Rows are read as if they said it, in the words of rows that do.
Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance: 25.09 run_script.py and configs/*.yaml of r0.1.0, 25.11
configs/*/workload_base_configs.py and utils/helpers.py of v0.2.0, 26.02.01 those of v0.3.1, 26.04.01 those of v0.5.0.
NVIDIA/dgxc-benchmarking, launch.sh of each model at v25.05.05. yanring/Megatron-MoE-ModelZoo at e865051 (2026-05):
best_practice/qwen3 and deepseek-v3, and sbatch_benchmarking.sh, whose A2A_OVERLAP asks for delayed gradients of
weights too; its figures are those of arXiv 2603.07685.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ZOO = "scripts of Megatron-MoE-ModelZoo"
"""Where tables do not name a release: the scripts that launch what they print."""
REPORT = "scripts of arXiv 2603.07685"
"""The same collection's, where its own tables say otherwise of a run of the same layout."""
LAYER_GRAPHS = "cuda_graph=layers"
"""Whole layers are captured: experts padded to their capacity have shapes that no step changes."""

_ROUTER_GRAPHS = "cuda_graph=transformer_engine/['moe_router', 'moe_preprocess']"
_ATTENTION_GRAPHS = "cuda_graph=transformer_engine/['attn', 'moe_router', 'moe_preprocess']"
_GRAPHS = (
    (re.compile(r"cuda_graph=layers|layer cuda graphs?|cuda_graph=\w+/full_iteration|full-iteration cuda graph"), ""),
    (re.compile(r"cuda_graph=transformer_engine/\['attn', 'moe_router', 'moe_preprocess'\]"), "-attention"),
    (re.compile(r"cuda_graph=transformer_engine/\['moe_router', 'moe_preprocess'\]"), "-router"),
)
"""What notes say of graphs, and the ending of the line of Megatron-Core that launches so."""


def launched_by(notes: str) -> str:
    """The line of Megatron-Core that launches as notes say: `megatron-core-graphs-router`.

    A step in one graph is launched as layers in graphs of their own are: neither waits for the host.

    Args:
        notes: the notes of a row, in lower case.
    """
    for said, ending in _GRAPHS:
        if said.search(notes):
            return f"megatron-core-graphs{ending}"
    return "megatron-core"


_TABLES = (
    (re.compile(r"large scale"), "January 2024"),
    (re.compile(r"a100 40gb"), "May 2023"),
    (re.compile(r"[ah]100 80gb"), "October 2023"),
)
"""Notes of llm-foundry's tables, and when each was written: the software that its README asks for then is PyTorch 1.13,
2.0 or 2.1, and 2.1. Source: mosaicml/llm-foundry, history of scripts/train/benchmarking/README.md."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe of a release; it is a row's if the row's model and device start so."""

    release: str
    """Release of Megatron-Bridge or dgxc-benchmarking, or `ZOO` or `REPORT`."""
    model: str
    device: str
    says: str = ""
    """Settings of exchanges and graphs, whatever the layout."""
    layout: str = ""
    """tp.pp.vpp.ep that `memory` was chosen for; empty for any."""
    memory: tuple[str, str] | None = None
    """Columns `recompute` and `recompute_detail`."""
    prints: Mapping[str, str] | None = None
    """Columns that the table prints otherwise than any code of the release has them."""
    dtypes: tuple[str, ...] = ()
    """Formats it holds for; empty for all."""
    only_layout: bool = False
    """Whether all it says holds for its layout alone."""


_NONE = ("none (of the recipe)", "")
_UP = ("selective", "recompute_modules=['mla_up_proj']")
_UP_MLP = ("selective", "recompute_modules=['mla_up_proj', 'mlp']")
_ACT = ("selective", "recompute_modules=['layernorm', 'moe_act']")
_PAIRED = "a2a_overlap=true"
_WGRAD_LATER = f"{_PAIRED} delay_wgrad=true"
_SHARED = "dispatcher=alltoall shared_expert_overlap=true"
# Of what 26.02.01 prints for these two formats no code has a word: 26.02 and 26.04 print what the tag has, at the same
# speed, and 70 billion weights with whole gradients, as the nvfp4 row would hold them, fill 280 of 288 GB.
_MISPRINTED = {"pp": "4", "vpp": "5", "dp": "16", "micro_batch": "1", "schedule": "1f1b-interleaved"}

# HybridEP and graphs of Transformer Engine came with Megatron-Core 0.15: rows of racks are those of March 2026 on.
_RACKS = {"year": "2026"}

_RECIPES = (
    Recipe("25.09", "deepseek", "H100", f"dispatcher=deepep {_PAIRED}", "2.8.4.64", _UP_MLP),
    Recipe("25.09", "deepseek", "B200", _SHARED, "1.16.1.8", _UP),
    Recipe("25.09", "deepseek", "GB200", _SHARED, "1.4.4.64", _UP),
    Recipe("25.09", "qwen3_30b", "B200", LAYER_GRAPHS, memory=_NONE),
    Recipe("25.09", "qwen3", "GB200", LAYER_GRAPHS, memory=_NONE),
    Recipe("25.09", "qwen3", "H100", memory=_NONE),
    Recipe("25.09", "llama3_70b", "GB200", layout="1.1.1.1", memory=(_NONE[0], "offload_layers=40")),
    Recipe("25.09", "llama3.1_405b", "GB200", layout="2.1.1.1", memory=(_NONE[0], "offload_layers=95")),
    Recipe("25.11", "deepseek", "H100", f"dispatcher=deepep {_PAIRED}", "2.8.4.64", _UP_MLP),
    Recipe("25.11", "deepseek", "B200", _SHARED, "1.16.1.8", _UP),
    Recipe("25.11", "deepseek", "GB200", f"{_ROUTER_GRAPHS} dispatcher=hybridep", "1.4.4.64", _UP),
    Recipe("25.11", "deepseek", "GB300", f"{_ATTENTION_GRAPHS} dispatcher=hybridep"),
    Recipe("25.11", "gpt oss", "H100", "dispatcher=alltoall", "1.4.1.8", _ACT),
    Recipe("25.11", "gpt oss", "GB200", "dispatcher=alltoall", "1.1.1.64", _ACT),
    Recipe("25.11", "gpt oss", "GB300", f"{_ATTENTION_GRAPHS} dispatcher=alltoall", "1.1.1.64", _NONE),
    Recipe("25.11", "qwen3_30b", "H100", f"{_ROUTER_GRAPHS} dispatcher=alltoall {_PAIRED}", memory=_NONE),
    Recipe("25.11", "qwen3", "H100", f"dispatcher=alltoall {_PAIRED}", memory=_NONE),
    Recipe("25.11", "qwen3_30b", "GB200", f"{_ROUTER_GRAPHS} dispatcher=hybridep", memory=_NONE, dtypes=("fp8-mx",)),
    Recipe("25.11", "qwen3", "GB200", f"{_ATTENTION_GRAPHS} dispatcher=hybridep", memory=_NONE),
    Recipe("25.11", "qwen3", "GB300", f"{_ROUTER_GRAPHS} dispatcher=hybridep", memory=_NONE),
    Recipe("26.02.01", "llama3_70b", "GB300", memory=_NONE, prints=_MISPRINTED, dtypes=("mxfp8", "nvfp4")),
    Recipe("26.04.01", "deepseek", "B200", f"{_ATTENTION_GRAPHS} dispatcher=deepep {_PAIRED}", "1.8.2.32", _UP_MLP),
    Recipe("v25.05.05", "deepseek", "H100", memory=_UP),
    Recipe("v25.05.05", "deepseek", "GB200", memory=("selective", "recompute_modules=['core_attn']")),
    Recipe("v25.05.05", "grok", "GB200", LAYER_GRAPHS),
    Recipe("v25.05.05", "nemotron4", "GB200", LAYER_GRAPHS),
    Recipe(ZOO, "qwen3", "GB200", f"{_ATTENTION_GRAPHS} {_WGRAD_LATER}", "1.4.6.64", _ACT, _RACKS, only_layout=True),
    Recipe(ZOO, "qwen3", "GB300", f"{_ATTENTION_GRAPHS} {_WGRAD_LATER}", "1.4.6.64", None, _RACKS, only_layout=True),
    Recipe(ZOO, "qwen3", "GB", f"{_ATTENTION_GRAPHS} {_WGRAD_LATER}", "1.1.1.64", _NONE, _RACKS, only_layout=True),
    Recipe(ZOO, "qwen3", "GB", "", "4.4.12.32", _ACT, _RACKS, only_layout=True),
    Recipe(ZOO, "qwen3", "GB", _ATTENTION_GRAPHS, "1.8.1.8", _NONE, _RACKS),
    Recipe(ZOO, "deepseek", "GB", _ATTENTION_GRAPHS, prints=_RACKS),
    Recipe(REPORT, "qwen3", "H100", f"{_ROUTER_GRAPHS} {_WGRAD_LATER}", "2.8.4.32", only_layout=True),
    Recipe(REPORT, "deepseek", "H100", _WGRAD_LATER),
)


def with_recipe(values: Mapping[str, str | None]) -> tuple[Mapping[str, str | None], str]:
    """A row of such a table that states no settings, with those of its release or scripts.

    Args:
        values: column to text.

    Returns:
        The row, changed or not, and what was filled in; empty where nothing was.
    """
    source, stated = values.get("source") or "", (values.get("recompute_detail") or "").strip()
    named = re.search(r"(?:Megatron-Bridge performance summary|dgxc-benchmarking) (v?\d\d\.\d\d(?:\.\d\d)?)", source)
    if "llm-foundry" in source:
        return _with_date(values)
    if "tpu-recipes" in source:
        return _with_policy(values)
    reported = "arXiv 2603.07685" in source
    if named and not stated:
        releases: tuple[str, ...] = (named[1],)
    elif reported or "Megatron-MoE-ModelZoo" in source:
        releases = (REPORT, ZOO) if reported else (ZOO,)
    else:
        return values, ""
    model, device, dtype = ((values.get(name) or "").lower() for name in ("model_name", "gpu", "dtype"))
    layout = ".".join((values.get(name) or "").strip() or "1" for name in ("tp", "pp", "vpp", "ep"))
    for recipe in _RECIPES:
        same = recipe.release in releases and model.startswith(recipe.model)
        same = same and recipe.layout in ("", layout) if recipe.only_layout else same
        if same and device.startswith(recipe.device.lower()) and (not recipe.dtypes or dtype in recipe.dtypes):
            break
    else:
        return values, ""
    found, said = dict(values) | dict(recipe.prints or {}), [recipe.says] if recipe.says else []
    if recipe.prints:
        said.append(", ".join(f"{name} {value}" for name, value in recipe.prints.items()))
    if recipe.memory and recipe.layout in ("", layout) and not (values.get("recompute") or "").strip():
        mode, detail = recipe.memory
        found["recompute"] = mode
        said.append(detail or mode)
    else:
        detail = f"recompute_modules=[{stated}]" if stated else ""
    found["recompute_detail"] = f"{recipe.says} {detail}".strip()
    origin = f"the recipe of {recipe.release}" if named else f"the {recipe.release}"
    return found, f"{'; '.join(said)}: of {origin}" if said else ""


def _with_policy(values: Mapping[str, str | None]) -> tuple[Mapping[str, str | None], str]:
    """A row of tpu-recipes with what its `custom` policy keeps, on the host; that of 405B keeps inputs of layers alone.

    Source: AI-Hypercomputer/maxtext, benchmarks/maxtext_trillium_model_configs.py: llama3_1_8b_8192.
    """
    model = (values.get("model_name") or "").lower()
    if "custom" not in (values.get("recompute") or "") or not model.startswith("llama3.1-8b"):
        return values, ""
    found = dict(values) | {
        "recompute": "selective",
        "recompute_detail": "recompute_modules=['core_attn', 'mlp', 'layernorm']",
    }
    return found, "recompute: all but the outputs of attention's products, of its script; copies to the host are free"


def _with_date(values: Mapping[str, str | None]) -> tuple[Mapping[str, str | None], str]:
    """A row of llm-foundry with the month in which its table was written."""
    notes = (values.get("notes") or "").lower()
    for table, month in _TABLES:
        if table.search(notes):
            return dict(values) | {"framework": f"{values.get('framework') or ''}, {month}"}, f"of {month}: its table"
    return values, ""
