"""NeMo Automodel: YAML of its training recipe, for any model of the transformers library.

Keys are those of nemo-automodel 0.7.0 (2026-11), https://github.com/NVIDIA-NeMo/Automodel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from meshwright.catalogue import later
from meshwright.errors import Problem
from meshwright.formats.processes import torchrun
from meshwright.formats.torch_loader import COMPUTE_FILE
from meshwright.library.software import software
from meshwright.targets import fsdp, hugging_face, pytorch_pipeline, seeing
from meshwright.targets.contract import ADAM_IS_ADAMW, Note, OneStrategyTarget, overlaps
from meshwright.targets.key_texts import Keys, nested_tables, yaml_text
from meshwright.targets.sayable import ANY, Plan, Rule, only

if TYPE_CHECKING:
    from meshwright.formats.shell import Launch, Word

TITLE = "NeMo Automodel"
CONFIG = "automodel.yaml"
_D = "distributed."
_ENDS = ("model.norm", "lm_head")
_DTYPES = "nemo_automodel/components/distributed/config.py of nemo-automodel 0.7.0"
_COPIES = only(0, 3, why="data ranks hold whole copies, or shards of everything", fix="use fsdp")
_EXPERTS_SPLIT = (
    *("bailing_moe", "deepseek_v3", "deepseek_v32", "ernie4_5_moe", "gemma4", "glm4_moe", "glm4_moe_lite"),
    *("glm_moe_dsa", "gpt_oss", "hy_v3", "kimi_linear", "mimo_v2", "minimax_m2", "minimax_m3", "mistral4"),
    *("nemotron_h", "qwen3_5_moe", "qwen3_moe", "qwen3_next"),
)
"""Families with classes of its own (MoEFSDPSyncMixin)."""
SAYS = (
    pytorch_pipeline.SAYS
    | hugging_face.RECOMPUTE
    | seeing.BESIDE
    | {"data.prefetch": ANY}
    | {"data.zero": _COPIES, "tuning": ANY, "precision": only("bf16", "fp32", "fp8", fsdp.IN_16_BITS.name)}
)
RULES = (
    *pytorch_pipeline.RULES,
    Rule(
        field="schedule",
        holds=lambda plan: plan.found.pp == 1 or plan.found.pipeline.schedule.token != "dualpipev",
        why="it builds the stages of ScheduleDualPipeV in turn over the ranks, and the schedule wants them in a V",
        fix="use zb-v",
        source="nemo_automodel/components/distributed/pipelining/functional.py of nemo-automodel 0.7.0",
    ),
    fsdp.main_copy(_DTYPES),
    Rule(
        field="precision",
        holds=lambda plan: plan.precision.compute != "fp8" or not (plan.model.is_moe or plan.model.tuning),
        why="it casts linear layers to fp8: experts are none, and adapters are not beside them",
        fix="use bf16",
        source="nemo_automodel/components/quantization/fp8.py of nemo-automodel 0.7.0",
    ),
    Rule(
        field="data.zero",
        holds=lambda plan: (
            plan.sharded or plan.strategy.tp * plan.strategy.cp * plan.found.pp * plan.strategy.expert.ep == 1
        ),
        why="whole copies (DDP) go with no other degree",
        fix="use fsdp",
        source=_DTYPES,
    ),
    Rule(
        field="expert.ep",
        holds=lambda plan: plan.strategy.devices % plan.strategy.expert.ep == 0,
        why="expert ranks are taken from those of one stage",
        fix="use an ep that divides tp x cp x dp",
        source="nemo_automodel/components/distributed/mesh_utils.py of nemo-automodel 0.7.0",
    ),
    Rule(
        field="expert.ep",
        holds=lambda plan: plan.strategy.expert.ep == 1 or plan.model.family in _EXPERTS_SPLIT,
        why="it splits the experts of models that it has classes of its own for, and those of transformers it does not",
        fix="use ep1",
        source="nemo_automodel/_transformers/registry.py and capabilities of nemo-automodel 0.7.0",
    ),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or plan.strategy.expert.ep == 1,
        why="classes that split experts take context ranks with Transformer Engine alone, which passes keys round",
        fix="use ep1, or cp1",
        source="nemo_automodel/_transformers/capabilities.py of nemo-automodel 0.7.0",
    ),
    Rule(
        field="tensor.overlap",
        holds=lambda plan: (
            plan.settings["tensor.overlap"] == "bulk"
            or (plan.settings["tensor.overlap"] == "ring" and bool(plan.settings["tensor.sequence_parallel"]))
        ),
        why="asynchronous tensor parallelism needs sequence parallelism",
        fix="leave out nosp, or tpov",
        source=_DTYPES,
    ),
    Rule(
        field="data.prefetch",
        holds=lambda plan: plan.strategy.data.prefetch == 1 or (plan.strategy.data.prefetch > 1 and plan.found.pp == 1),
        why="layers of no pipeline are told how many to gather ahead, the next one at least",
        fix="leave prefetch out",
        source="nemo_automodel/components/distributed/parallelizer.py of nemo-automodel 0.7.0",
    ),
    fsdp.offloads_together(),
    fsdp.offloads_shards(_DTYPES),
)


def configuration(plan: Plan) -> Keys:
    """The keys of the recipe."""
    strategy, found = plan.strategy, plan.found
    data, sharded = strategy.data, plan.sharded
    wide = plan.precision.activations == "fp32"
    mbs = found.pipeline.micro_batch
    flat: Keys = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler.global_batch_size": plan.workload.global_batch,
        "step_scheduler.local_batch_size": mbs * (found.pipeline.num_micro_batches if found.pp > 1 else 1),
        "step_scheduler.max_steps": 20,
        "model._target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_config",
        "model.config._target_": "transformers.AutoConfig.from_pretrained",
        "model.config.pretrained_model_name_or_path": "${oc.env:MODEL}",
        "model.torch_dtype": _kept_in(plan),
        # Its own classes take context ranks with Transformer Engine alone, which passes keys and values on in rings.
        "model.force_hf": True if strategy.cp > 1 else None,
        f"{_D}strategy": "fsdp2" if sharded else "ddp",
        f"{_D}activation_checkpointing": plan.recomputed,
        f"{_D}dp_size": strategy.dp,
    }
    if sharded:
        flat |= {
            f"{_D}dp_replicate_size": data.replicate,
            f"{_D}tp_size": strategy.tp,
            f"{_D}cp_size": strategy.cp,
            f"{_D}pp_size": found.pp,
            f"{_D}ep_size": strategy.expert.ep,
            f"{_D}sequence_parallel": strategy.tp > 1 and bool(plan.settings["tensor.sequence_parallel"]),
            f"{_D}enable_async_tensor_parallel": pytorch_pipeline.overlaps_tensors(plan),
            f"{_D}reshard_after_forward": data.reshard,
            f"{_D}defer_fsdp_grad_sync": software(plan.workload.software).whole_gradients == "always",
            f"{_D}mp_policy._target_": "torch.distributed.fsdp.MixedPrecisionPolicy",
            f"{_D}mp_policy.param_dtype": "float32" if wide else "bfloat16",
            f"{_D}mp_policy.reduce_dtype": "float32",
            f"{_D}offload_policy._target_": "torch.distributed.fsdp.CPUOffloadPolicy"
            if strategy.offload.weights
            else None,
        }
        if data.prefetch > 1:
            depths = ("fsdp2_forward_prefetch_depth", "fsdp2_backward_prefetch_depth")
            flat |= {f"{_D}enable_fsdp2_prefetch": True, **{f"{_D}{key}": data.prefetch for key in depths}}
    elif not wide:
        flat[f"{_D}autocast_dtype"] = "bfloat16"
    if found.pp > 1:
        name, file = pytorch_pipeline.said_schedule(plan)
        stages = pytorch_pipeline.modules_of_stages(plan, "model.embed_tokens", "model.layers", _ENDS)
        flat |= {
            f"{_D}pipeline.pp_schedule": name,
            f"{_D}pipeline.pp_schedule_csv": file,
            f"{_D}pipeline.pp_microbatch_size": mbs,
            f"{_D}pipeline.module_fqns_per_model_part": stages,
        }
    if plan.precision.compute == "fp8":
        # The head stays in 16 bits, as in the prices of other targets.
        flat |= {"fp8.enabled": True, "fp8.recipe_name": "tensorwise", "fp8.filter_fqns": ["lm_head"]}
    own = _of_images(plan) if seeing.sees(plan) else {}
    from meshwright.targets.automodel import peft  # searches write no files

    return nested_tables(flat | own) | _DATA | _optimizer(plan) | peft.keys(plan) | _samples(plan)


def _of_images(plan: Plan) -> Keys:
    """Keys of a model that sees, whose modules are those of its class in the transformers library."""
    return {
        "recipe": "FinetuneRecipeForVLM",
        "model._target_": "nemo_automodel.NeMoAutoModelForImageTextToText.from_config",
        "model.force_hf": True,
    }


def _samples(plan: Plan) -> Keys:
    """The data set of a model that sees, and what of it is frozen; nothing of others."""
    if not seeing.sees(plan):
        return {}
    width, height = seeing.size_in_pixels(plan) if seeing.images_of(plan) else (28, 28)
    frozen = [{"path": name} for name in seeing.frozen_names(plan)]
    return {
        "freeze_config": {"freeze_modules": frozen, "freeze_vision_tower": False},
        "dataset": {
            "_target_": "nemo_automodel.components.datasets.vlm.mock.build_mock_vlm_dataset",
            "num_samples": 100 * plan.workload.global_batch,
            "num_images_per_sample": seeing.images_per_sample(plan),
            "image_size": [width, height],
            "max_length": plan.workload.seq_len,
        },
        "dataloader": {"_target_": "torchdata.stateful_dataloader.StatefulDataLoader", "drop_last": True},
    }


def _kept_in(plan: Plan) -> str:
    """Main weights are in fp32, computed with in 16 bits; those beside adapters, and of plans without, in 16 bits."""
    lora = plan.model.tuning is not None and plan.model.tuning.lora
    narrow = lora.base not in ("fp32",) if lora else plan.precision.name == fsdp.IN_16_BITS.name
    return "bfloat16" if narrow and plan.precision.activations != "fp32" else "float32"


_DATA: Keys = {
    "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
    "checkpoint": {"enabled": False},
}


def _optimizer(plan: Plan) -> Keys:
    return {
        "dataset": {
            "_target_": "nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset",
            "seq_len": plan.workload.seq_len,
            "vocab_size": plan.model.vocab,
        },
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1},
    }


def _beyond(plan: Plan) -> Iterator[Problem]:
    yield from hugging_face.shape_problems(plan)
    yield from seeing.problems(plan, TITLE)
    if plan.model.tuning is not None:
        from meshwright.targets.automodel import peft  # few questions are of adapters

        yield from peft.untrainable(plan)


def _files(plan: Plan) -> tuple[tuple[str, str], ...]:
    head = (f"automodel {CONFIG}; keys of nemo-automodel 0.7.0", f"plan: {plan.job.name or 'uneven stages'}")
    return (CONFIG, yaml_text(configuration(plan), head)), *pytorch_pipeline.schedule_files(plan)


def _start(plan: Plan) -> str:
    command = f"automodel {CONFIG} --nproc-per-node {plan.per_node}"
    if plan.nodes > 1:
        command = f"{torchrun(plan.job, port=6000)} -m nemo_automodel.cli.app {CONFIG}"
    return hugging_face.started_by(command)


_IN_PARTS = Note(
    text="it recomputes norms, attention and MLP one by one, and keeps the input of each: more than the plan's memory",
    when=lambda plan: plan.recomputed and plan.strategy.cp == 1 and not plan.model.is_moe,
)


def _said(launch: Launch) -> Mapping[str, Word]:
    from meshwright.targets.overrides import by_options

    return by_options(launch.words)


TARGET = OneStrategyTarget(
    name="automodel",
    title=TITLE,
    version="0.7.0 (2026-11)",
    unequal_nodes=True,
    says=SAYS,
    rules=RULES,
    beyond=_beyond,
    predicts_ahead=False,
    adapted=later("meshwright.targets.peft_experts:keeps_experts"),
    write=_files,
    start=_start,
    notes=(overlaps("FSDP2 and DDP overlap their collectives"), ADAM_IS_ADAMW, _IN_PARTS, *seeing.NOTES),
    read=later("meshwright.targets.automodel.read:read"),
    overrides=_said,
    recognised=later("meshwright.targets.automodel.read:FILE.recognised"),
    beside=(COMPUTE_FILE,),
    software="pytorch-eager",
)
