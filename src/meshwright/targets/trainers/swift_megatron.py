"""`megatron sft` of ms-swift: options of Megatron-LM, without the model's sizes, which the model's own files say.

Names and defaults are those of swift/megatron/arguments of ms-swift 4 (2026), https://github.com/modelscope/ms-swift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron.options import known_options
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.shell import Word, word
from meshwright.targets.keys import KeyReader

_RENAMED = {
    "max_length": "--seq-length",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
}
_USUAL = {
    "micro_batch_size": "1",
    "global_batch_size": "16",
    "recompute_granularity": "selective",
    "attention_backend": "flash",
    "use_distributed_optimizer": "",
    "bf16": "",
    "expert_tensor_parallel_size": "1",
    "moe_token_dispatcher_type": "alltoall",
}
"""Defaults of `megatron sft`, where Megatron-LM has others or none."""
_NOT_MEGATRON = (
    "seed",
    "loss_scale",
    "optimizer",
    "load",
    "save",
    "log_interval",
    "finetune",
    "num_workers",
    "weight_decay",
    "lr",
)


def megatron_launch(
    reader: KeyReader, options: Mapping[str, Sequence[Word]], lora: dict[str, Any] | None, world: int
) -> LaunchFile:
    """The plan that options of `megatron sft` say.

    Args:
        reader: the reader of the options.
        options: the same, as the words of the script.
        lora: adapters, as a workload has them; None where all of the model is trained.
        world: processes of the job.
    """
    if reader.switch("use_tiled_mlp"):
        reader.refuse("use_tiled_mlp", "true", "Megatron-LM computes feed-forward parts whole", "leave it out")
    if reader.get("mtp_num_layers"):
        why = "prediction modules are trained beside the model's layers, and how many is not in its configuration"
        reader.refuse("mtp_num_layers", reader.get("mtp_num_layers"), why, "leave it out")
    if reader.word("torch_dtype", "bfloat16") not in ("bfloat16", "bf16"):
        reader.refuse("torch_dtype", reader.get("torch_dtype"), "bfloat16 is read", "use bfloat16")
    given = {name: [word.text for word in words] for name, words in options.items()}
    words = [word("pretrain_gpt.py")]
    for name, usual in _USUAL.items():
        if name not in given:
            words += [word(f"--{name.replace('_', '-')}"), *([word(usual)] if usual else [])]
    known = known_options()
    used: dict[str, str] = {}
    for name, texts in given.items():
        flag = _RENAMED.get(name, f"--{name.replace('_', '-')}")
        if flag not in known or name in _NOT_MEGATRON or (name == "recompute_granularity" and texts == ["none"]):
            continue
        used[flag] = name
        if texts and texts[0].lower() == "false":
            continue
        switch = known[flag].takes == "0"
        words += [word(flag), *([] if switch else [word(text) for text in texts])]
    launched = read_flags(words, devices=world)
    row, etp = launched.row, reader.degree("expert_tensor_parallel_size")
    if row is not None and row.etp != etp:
        row = replace(row, etp=etp)
    said = tuple(replace(one, option=used.get(one.option, one.option)) for one in launched.said)
    for said_one in said:
        reader.get(said_one.option)
    for name in ("model", "max_length", "packing", "tuner_type"):
        reader.get(name)
    workload = {**launched.workload, "software": None, **({"lora": lora} if lora else {})}
    model = reader.get("model") or reader.get("load")  # weights converted before lie in a folder of the model's name
    problems = (*launched.problems, *reader.problems)
    named = {"name": str(model)} if model else {}
    return replace(launched, row=row, said=said, workload=workload, problems=problems, model=named)
