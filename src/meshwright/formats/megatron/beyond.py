"""Options of Megatron-LM that change the model, its memory or its steps, and that are not read: each is refused.

Source: megatron/training/arguments.py and transformer_config.py of Megatron-LM at the commit of `options.tsv`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.errors import Problem

if TYPE_CHECKING:
    from meshwright.formats.megatron.options import Values

_LAYERS = "its layers are others than sizes in options describe"
_MEMORY = "it moves or divides memory in a way that is not priced"
_STEPS = "its steps differ from each other in a way that is not priced"
_FORMATS = "it gives single products formats of their own"
_FULL = "experts compute empty places up to their capacity"
_PADDED = "--moe-pad-expert-input-to-capacity"
_WHY = {
    **dict.fromkeys(
        (
            *("--experimental-attention-variant", "--linear-attention-freq", "--enable-mhc-connections"),
            *("--moe-latent-size", "--heterogeneous-layers-config-path", "--heterogeneous-layers-config-encoded-json"),
            *("--mtp-use-repeated-layer", "--encoder-num-layers", "--spec"),
        ),
        _LAYERS,
    ),
    "--freeze-all-layers": "no layer is trained",
    "--yaml-cfg": "that file says the options",
    **dict.fromkeys(
        (
            *("--mlp-chunks-for-training", "--moe-paged-stash", "--tensor-parallel-num-weight-shards"),
            *("--expert-tensor-parallel-num-weight-shards", "--gtp-remat-opt-in-modules"),
        ),
        _MEMORY,
    ),
    **dict.fromkeys(("--step-batch-size-schedule", "--max-seqlen-per-dp-cp-rank"), _STEPS),
    _PADDED: _FULL,
    **dict.fromkeys(("--te-precision-config-file", "--fp8-quantizer-factory", "--fp4-quantizer-factory"), _FORMATS),
}
_USUAL = {
    "--spec": (
        *("mamba_stack_spec", "get_gpt_layer_local_spec", "get_gpt_layer_with_transformer_engine_spec", "local"),
        *("qwen3_spec", "deepseek_spec"),  # of MindSpeed-LLM: usual layers, with norms of queries and keys or latents
    ),
    "--tensor-parallel-num-weight-shards": ("1",),
    "--expert-tensor-parallel-num-weight-shards": ("1",),
    "--mlp-chunks-for-training": ("1",),
}
"""Values, by the last name of a word of each, that change nothing."""


def beyond_options(values: Values) -> Iterator[Problem]:
    """What options say that no plan here holds.

    Args:
        values: options as they were read.
    """
    whole = values.given.get("--moe-expert-capacity-factor", ("1",))[:1] in (("1",), ("1.0",))
    for flag, why in _WHY.items():
        said = None if flag == _PADDED and whole else values.given.get(flag)
        if said is None or any(word.rpartition(".")[2] in _USUAL.get(flag, ()) for word in said):
            continue
        values.asked.add(flag)
        shown = f" {said[-1][:40]}" if said else ""
        fix = "leave it out to check the rest, or price the plan: check MODEL --plan PLAN"
        yield Problem(what=f"{flag}{shown} is not read", why=why, fix=fix, field=flag)
