"""A plan as a Python module of torchtitan: values are literals, so that the module is read without being run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.targets import pytorch_pipeline
from meshwright.targets.key_texts import Keys
from meshwright.targets.sayable import Plan
from meshwright.targets.torchtitan import MODULE, formats
from meshwright.targets.torchtitan.flavors import Flavor, longest, rope_changes
from meshwright.targets.torchtitan.lora import converter

ENDS = ("norm", "lm_head")
_TEXT = '''\
"""{head}

Start it with the command that came with this file: `--module {module} --config plan`. Keys of torchtitan 0.3.0.
"""

from torchtitan.components.checkpoint import CheckpointManager
{lora}from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
{quantization}from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import {kind}
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{module_of_model} import model_registry
{more_imports}from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    model_spec = model_registry({registry})
{changes}    return Trainer.Config(
        model_spec=model_spec,
        loss={loss},
        hf_assets_path="./assets/tokenizer",
        optimizer=default_adamw(lr=3e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        checkpoint=CheckpointManager.Config(enable=False),
        training=TrainingConfig(
{training}
        ),
        parallelism=ParallelismConfig(
{parallelism}
        ),
        activation_checkpoint={recompute},
        compile=CompileConfig({compile}),
    )
'''


def training_keys(plan: Plan) -> Keys:
    """Fields of `TrainingConfig`."""
    pipeline, strategy = plan.found.pipeline, plan.strategy
    steps = pipeline.num_micro_batches if plan.found.pp > 1 else 1
    # Experts' ranks and gradients on their way to the host are waited for, which a captured graph cannot.
    graphs = plan.found.pp == 1 and strategy.expert.ep == 1 and not strategy.offload.weights
    lora = plan.model.lora
    return {
        **({"dtype": "bfloat16"} if lora is not None and lora.base is None else {}),
        "local_batch_size": pipeline.micro_batch * steps,
        "global_batch_size": plan.workload.global_batch,
        "seq_len": plan.workload.seq_len,
        "steps": 20,
        "mixed_precision_param": "float32" if plan.precision.activations == "fp32" else "bfloat16",
        "mixed_precision_reduce": "float32",
        "enable_cpu_offload": bool(strategy.offload.weights),
        "disable_cuda_graphs": not graphs,
    }


def parallelism_keys(plan: Plan) -> Keys:
    """Fields of `ParallelismConfig`, every degree said."""
    strategy, found = plan.strategy, plan.found
    keys: Keys = {
        "data_parallel_replicate_degree": strategy.data.replicate,
        "data_parallel_shard_degree": strategy.data.shard,
        "fsdp_reshard_after_forward": "always" if strategy.data.reshard else "never",
        "tensor_parallel_degree": strategy.tp,
        "enable_sequence_parallel": plan.settings["tensor.sequence_parallel"],
        "context_parallel_degree": strategy.cp,
        "expert_parallel_degree": strategy.expert.ep,
        "pipeline_parallel_degree": found.pp,
    }
    if found.pp == 1:
        return keys
    name, file = pytorch_pipeline.said_schedule(plan)
    keys |= {
        "pipeline_parallel_schedule": name,
        "pipeline_parallel_microbatch_size": found.pipeline.micro_batch,
        "module_fqns_per_model_part": pytorch_pipeline.modules_of_stages(plan, "tok_embeddings", "layers", ENDS),
    }
    return keys | {"pipeline_parallel_schedule_csv": file} if file else keys


def module_text(plan: Plan, flavor: Flavor) -> str:
    """The module."""
    mtp, ring = plan.model.mtp_layers, pytorch_pipeline.overlaps_tensors(plan)
    kind = {"full": "FullAC", "selective": "SelectiveAC"}.get(plan.strategy.recompute.kind)
    adapted = converter(plan)
    converted = ", ".join((*formats.converters(plan), *([adapted] if adapted else [])))
    modules = f", num_mtp_layers={mtp}" if mtp else ""
    if flavor.module == "gpt_oss" and plan.strategy.cp > 1:
        modules += ', attn_backend="flex"'  # its usual kernel takes whole sequences
    chunked = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
    return _TEXT.format(
        head=f"{plan.model.name} on {plan.job.plan.devices} devices: {plan.job.name or 'a plan of uneven stages'}.",
        module=MODULE,
        module_of_model=flavor.module,
        lora="from torchtitan.components.lora import LoRAConverter\n" if adapted else "",
        more_imports="from torchtitan.models.deepseek_v3.mtp import MTPLoss\n" if mtp else "",
        quantization=_imported("torchtitan.components.quantization", sorted(formats.converter_classes(plan))),
        registry=f'"{flavor.name}"{modules}{f", converters=[{converted}]" if converted else ""}',
        changes=_changes(plan, flavor),
        loss=(
            "MTPLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
            if mtp
            else f"ChunkedLossWrapper.Config(loss_fn={chunked})"
        ),
        training=_arguments(training_keys(plan)),
        parallelism=_arguments(parallelism_keys(plan)),
        kind=kind or "FullAC",
        recompute=f"{kind}.Config()" if kind else "None",
        compile="enable=True, enable_async_tensor_parallel=True" if ring else "enable=True",
    )


def _imported(module: str, names: Sequence[str]) -> str:
    """A line that imports names, where there are any."""
    return f"from {module} import {', '.join(names)}\n" if names else ""


def _changes(plan: Plan, flavor: Flavor) -> str:
    """Lines that make the rope of torchtitan's config that of the model, as long as its sequences."""
    changes, _ = rope_changes(plan.model, flavor)
    if plan.workload.seq_len > longest(flavor):
        changes = (*changes, f"max_seq_len = {plan.workload.seq_len}")
    if not changes:
        return ""
    lines = [f"        layer.attention.rope.{change}" for change in changes]
    return "\n".join(["    for layer in model_spec.model.layers:", *lines]) + "\n"


def _arguments(keys: Mapping[str, Any]) -> str:
    lines = []
    for name, value in keys.items():
        if isinstance(value, list):
            inner = "\n".join(f"                {python_literal(row)}," for row in value)
            lines.append(f"            {name}=[\n{inner}\n            ],")
        else:
            lines.append(f"            {name}={python_literal(value)},")
    return "\n".join(lines)


def python_literal(value: Any) -> str:
    return repr(value).replace("'", '"')
