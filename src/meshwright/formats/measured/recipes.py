"""What NVIDIA's tables of Megatron-Bridge leave open and the code of the same release says.

Its tables print degrees, batches and formats; what is recomputed, how tokens travel, what overlaps and what graphs
capture stands in scripts/performance of the tag. Rows are read as if they said it, in the words of rows that do.
Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance: 25.09 run_script.py and configs/*.yaml of r0.1.0, 25.11
configs/*/workload_base_configs.py and utils/helpers.py of v0.2.0, 26.02.01 those of v0.3.1, 26.04.01 those of v0.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

LAYER_GRAPHS = "cuda_graph=layers"
"""Whole layers are captured: experts padded to their capacity have shapes that no step changes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe of a release; it is a row's if the row's model and device start so."""

    release: str
    model: str
    device: str
    says: str = ""
    """Of exchanges and graphs, whatever the layout."""
    layout: str = ""
    """tp.pp.vpp.ep that `memory` was chosen for; empty for any."""
    memory: tuple[str, str] | None = None
    """Columns `recompute` and `recompute_detail`."""
    prints: Mapping[str, str] | None = None
    """Columns that the table prints otherwise than any code of the release has them."""
    dtypes: tuple[str, ...] = ()
    """Formats it holds for; empty for all."""


_NONE = ("none (of the recipe)", "")
_UP = ("selective", "recompute_modules=['mla_up_proj']")
_UP_MLP = ("selective", "recompute_modules=['mla_up_proj', 'mlp']")
_ACT = ("selective", "recompute_modules=['layernorm', 'moe_act']")
_PAIRED = "a2a_overlap=true"
_SHARED = "dispatcher=alltoall shared_expert_overlap=true"
# Of what 26.02.01 prints for these two formats no code has a word: 26.02 and 26.04 print what the tag has, at the same
# speed, and 70 billion weights with whole gradients, as the nvfp4 row would hold them, fill 280 of 288 GB.
_MISPRINTED = {"pp": "4", "vpp": "5", "dp": "16", "micro_batch": "1", "schedule": "1f1b-interleaved"}

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
    Recipe("25.11", "deepseek", "GB200", "dispatcher=hybridep", "1.4.4.64", _UP),
    Recipe("25.11", "deepseek", "GB300", "dispatcher=hybridep"),
    Recipe("25.11", "gpt oss", "H100", "dispatcher=alltoall", "1.4.1.8", _ACT),
    Recipe("25.11", "gpt oss", "GB200", "dispatcher=alltoall", "1.1.1.64", _ACT),
    Recipe("25.11", "gpt oss", "GB300", "dispatcher=alltoall", "1.1.1.64", _NONE),
    Recipe("25.11", "qwen3", "H100", f"dispatcher=alltoall {_PAIRED}", memory=_NONE),
    Recipe("25.11", "qwen3", "GB200", "dispatcher=hybridep", memory=_NONE),
    Recipe("25.11", "qwen3", "GB300", "dispatcher=hybridep", memory=_NONE),
    Recipe("26.02.01", "llama3_70b", "GB300", memory=_NONE, prints=_MISPRINTED, dtypes=("mxfp8", "nvfp4")),
    Recipe("26.04.01", "deepseek", "B200", f"dispatcher=deepep {_PAIRED}", "1.8.2.32", _UP_MLP),
)


def with_recipe(values: Mapping[str, str | None]) -> tuple[Mapping[str, str | None], str]:
    """A row of a Megatron-Bridge table that states no settings, with those of its release.

    Args:
        values: column to text.

    Returns:
        The row, changed or not, and what was filled in; empty where nothing was.
    """
    release = re.search(r"Megatron-Bridge performance summary (\d\d\.\d\d(?:\.\d\d)?)", values.get("source") or "")
    if release is None or (values.get("recompute_detail") or "").strip():
        return values, ""
    model, device, dtype = ((values.get(name) or "").lower() for name in ("model_name", "gpu", "dtype"))
    layout = ".".join((values.get(name) or "").strip() or "1" for name in ("tp", "pp", "vpp", "ep"))
    for recipe in _RECIPES:
        same = recipe.release == release[1] and model.startswith(recipe.model)
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
        detail = ""
    found["recompute_detail"] = f"{recipe.says} {detail}".strip()
    return found, f"{'; '.join(said)}: of the recipe of {release[1]}" if said else ""
