"""Axolotl: the YAML of a fine-tuning, with FSDP2 in its own keys or DeepSpeed in a JSON file.

Keys are those of its schemas (utils/schemas/config.py, training.py, peft.py, fsdp.py) in axolotl 0.19.0 (2026-11),
https://github.com/axolotl-ai-cloud/axolotl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from meshwright.catalogue import later
from meshwright.errors import Problem
from meshwright.specs.tuning import ALL_LINEAR
from meshwright.targets import adapters, deepspeed, fine_tuning, fsdp, hugging_face, seeing
from meshwright.targets.contract import OneStrategyTarget, marked_lines
from meshwright.targets.key_texts import Keys, nested_tables, yaml_text
from meshwright.targets.sayable import ANY, Plan, Rule, only

if TYPE_CHECKING:
    from meshwright.formats.shell import Launch, Word

TITLE = "Axolotl"
CONFIG = "axolotl.yaml"
recognised = marked_lines(r"^(?:sequence_len|base_model):", r"^(?:micro_batch_size|adapter):")
DATASETS = [{"path": "data.jsonl", "type": "completion"}]
"""Texts to train on: the command line takes no list of data sets."""
CONVERSATIONS = [{"path": "data.jsonl", "type": "chat_template"}]
"""Conversations with images, for models that see."""
_IN_PIECES = {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_fused_linear_cross_entropy": True}
"""Logits and loss in pieces: integrations/liger/args.py of axolotl 0.19.0."""
_TEMPLATES = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), "qwen2_vl"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), "qwen3_5"),
    "gemma3": "gemma3",
    "mllama": "llama3_2_vision",
}
"""Axolotl's templates of models that see, by which it knows whose words are trained; others have their tokenizer's."""
_SCHEMA = "axolotl/utils/schemas/config.py of axolotl 0.19.0"
_LOADED = "axolotl/utils/config/__init__.py and axolotl/monkeypatch/accelerate/fsdp2.py of axolotl 0.19.0"
SAYS = (
    deepspeed.SAYS
    | fsdp.SAYS
    | {
        "tp": only(1, why="its call for tensor ranks stops in transformers 5.23", fix="use fsdp, z3 or cp"),
        "cp": ANY,
        "context.kinds": only("p2p", why="keys and values go round in a ring", fix="use p2p"),
        "expert.ep": only(1, why="experts are on every rank"),
        "offload.tier": ANY,
        "precision": only("bf16", "fp16", "fp32", *fine_tuning.AS_LOADED),
        "sequence_lengths": fine_tuning.PACKED,
    }
)
_FREER = ("data.replicate", "data.reshard", "offload.weights")
"""What DeepSpeed's rules say of these does not hold of FSDP2; tensor ranks are refused as such."""
RULES = (
    *(rule for rule in deepspeed.RULES if rule.field not in ("cp", "data.zero", "tensor.sequence_parallel", *_FREER)),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or plan.strategy.data.family == "fsdp",
        why="context parallelism goes with FSDP2",
        fix="use fsdp",
        source=_SCHEMA,
    ),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or _attention(plan) == "flash_attention_2",
        why="its ring of keys and values is made of flash attention, which takes 16 bits",
        fix="use bf16 and no materialised attention, or cp1",
        source=_SCHEMA,
    ),
    Rule(
        field="precision",
        holds=lambda plan: (
            plan.strategy.data.family != "fsdp"
            or plan.model.lora is not None
            or plan.precision.name in ("fp32", *fine_tuning.AS_LOADED)
        ),
        why="weights are loaded in 16 bits, which FSDP2 shards and trains as they are, moments too",
        fix="state grad_dtype bf16, moment_dtype bf16 and main_copy none, or use z3",
        source=_LOADED,
    ),
    fine_tuning.as_loaded("deepspeed/runtime/bf16_optimizer.py of deepspeed 0.19.8"),
    Rule(
        field="data.replicate",
        holds=lambda plan: (
            plan.strategy.data.zero == 0 or plan.strategy.data.replicate == 1 or plan.strategy.data.family == "fsdp"
        ),
        why="ZeRO shards over all data ranks",
        fix="use hsdp",
        source=_SCHEMA,
    ),
    Rule(
        field="offload.optimizer",
        holds=lambda plan: (
            plan.strategy.data.family != "fsdp"
            or plan.strategy.offload.optimizer == plan.strategy.offload.weights == plan.strategy.offload.gradients
        ),
        why="FSDP2 offloads weights, gradients and optimizer states together",
        fix="use off-wog, or none",
        source=fsdp.OFFLOAD_POLICY,
    ),
    Rule(
        field="data.overlap",
        holds=lambda plan: plan.strategy.data.overlap or plan.strategy.data.family != "fsdp",
        why="FSDP2 overlaps its collectives",
        fix="leave out nodpov",
        source=_SCHEMA,
    ),
    Rule(
        field="data.reshard",
        holds=lambda plan: plan.strategy.data.reshard or plan.strategy.data.family == "fsdp" or not plan.sharded,
        why="ZeRO-3 frees gathered weights as the limits on live parameters say",
        fix="use z3",
        source=_SCHEMA,
    ),
    Rule(
        field="sequence_lengths",
        holds=lambda plan: not plan.workload.sequence_lengths or _packed(plan),
        why="samples are packed with flash attention, and not in a ring of several of them",
        fix="use flash attention and micro-batches of one",
        source=_SCHEMA,
    ),
    fsdp.offloads_shards(_SCHEMA, why="weights that every rank holds whole are not offloaded", fix="use fsdp, or z3"),
)


_ADAPTED = adapters.ByPeft(listed=True, stores_experts=True)


def configuration(plan: Plan) -> Keys:
    """The keys of the YAML."""
    strategy, lora = plan.strategy, plan.model.lora
    flat: Keys = {
        "datasets": DATASETS,
        "sequence_len": plan.workload.seq_len,
        "sample_packing": _packed(plan),
        "micro_batch_size": plan.found.pipeline.micro_batch,
        "gradient_accumulation_steps": plan.found.pipeline.num_micro_batches,
        "gradient_checkpointing": plan.recomputed,
        "attn_implementation": _attention(plan),
        "optimizer": hugging_face.OPTIMIZERS[plan.workload.optimizer],
        **fine_tuning.dtype_keys(plan),
        **(_IN_PIECES if plan.workload.loss_tiles > 1 else {}),
        "learning_rate": 1e-4,
        "max_steps": 20,
        "output_dir": "out",
    }
    if fine_tuning.by_deepspeed(plan):
        flat["deepspeed"] = deepspeed.CONFIG
    elif not fine_tuning.copies_as_loaded(plan):
        flat |= {
            "dp_shard_size": strategy.data.shard,
            "dp_replicate_size": strategy.data.replicate,
            "tensor_parallel_size": strategy.tp,
            "context_parallel_size": strategy.cp,
            "fsdp_version": 2,
            "fsdp_config.reshard_after_forward": strategy.data.reshard,
            "fsdp_config.offload_params": bool(strategy.offload.weights),
            "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_config.state_dict_type": "SHARDED_STATE_DICT",
        }
    if lora is not None:
        given = adapters.given(plan)
        stored = adapters.BY_PEFT(plan.model, lora).skip != lora.skip  # but for a key of its own
        every = ALL_LINEAR in given.targets and not stored
        named = adapters.usual_names(plan) if ALL_LINEAR in given.targets else given.targets
        flat |= {
            "adapter": "qlora" if lora.base not in (None, "int8", "fp32") else "lora",
            "lora_r": lora.rank,
            "lora_alpha": lora.rank,
            "lora_dropout": lora.dropout,
            "lora_target_linear": True if every else None,
            "lora_target_modules": None if every else list(named),
            "lora_target_parameters": list(given.parameters) or None,
            "quantize_moe_experts": True if stored else None,
            "peft_use_dora": lora.dora or None,
            "peft_layers_to_transform": adapters.layer_numbers(lora),
            "lora_modules_to_save": [adapters.SAVED[part] for part in lora.train] or None,
            "load_in_8bit": True if lora.base == "int8" else None,
            "load_in_4bit": True if lora.base not in (None, "int8", "fp32") else None,
        }
    return nested_tables(flat | _of_images(plan))


def _of_images(plan: Plan) -> Keys:
    """Keys of a model that sees: what is trained of it, and its samples."""
    if not seeing.sees(plan):
        return {}
    keys: Keys = {}
    if plan.model.lora is not None:
        # Names alone would put adapters into the tower, too.
        names = "|".join(adapters.names_in_class(plan))
        keys = {"lora_target_linear": None, "lora_target_modules": f"{re.escape(_text(plan))}\\..*\\.({names})"}
    elif seeing.frozen_names(plan):
        keys = {"unfrozen_parameters": [f"^{name}." for name in seeing.trained_names(plan)]}
    if plan.strategy.data.family == "fsdp" and plan.model.settings.seen_by in seeing.NAME_MISSING_LAYERS:
        keys["fsdp_config.transformer_layer_cls_to_wrap"] = f"{plan.model.family.capitalize()}DecoderLayer"
    if seeing.images_of(plan) is None:
        return keys
    return keys | {
        "datasets": CONVERSATIONS,
        "sample_packing": False,
        "processor_type": "AutoProcessor",
        "chat_template": _TEMPLATES.get(str(plan.model.settings.seen_by), "tokenizer_default"),
        "skip_prepare_dataset": True,
        "remove_unused_columns": False,
        "image_size": list(seeing.size_in_pixels(plan)),
    }


def _text(plan: Plan) -> str:
    """Where the class of a model that sees holds its text."""
    return seeing.class_of(plan).text


def _attention(plan: Plan) -> str:
    """Attention kernels of a plan: those of flash attention take no fp32."""
    if plan.workload.attention_kernel == "materialised":
        return "eager"
    return "sdpa" if plan.precision.activations == "fp32" else "flash_attention_2"


def _packed(plan: Plan) -> bool:
    """Whether samples share rows: with flash attention, and round a ring one at a time."""
    several_in_a_ring = plan.strategy.cp > 1 and plan.found.pipeline.micro_batch > 1
    return plan.workload.attention_kernel != "materialised" and not several_in_a_ring


def _files(plan: Plan) -> tuple[tuple[str, str], ...]:
    held = 'the texts, {"text": ...}' if seeing.images_of(plan) is None else 'conversations, {"messages": [...]}'
    texts = f"{DATASETS[0]['path']} holds {held} in each line; the model is given on the command line"
    head = (texts, f"plan: {plan.job.name or plan.model.name}")
    return (CONFIG, yaml_text(configuration(plan), head)), *fine_tuning.engine_files(plan)


def _start(plan: Plan) -> str:
    launcher = ""
    if plan.nodes > 1:
        address = "--rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:6000"
        launcher = f" --launcher torchrun -- --nnodes {plan.nodes} --nproc_per_node {plan.per_node} {address}"
    return f"axolotl train {CONFIG} --base-model id/or/folder{launcher}"


def _beyond(plan: Plan) -> Iterator[Problem]:
    yield from hugging_face.trainer_problems(plan, TITLE, makes=_ADAPTED)
    lora = plan.model.lora
    if lora is not None and lora.base not in (None, "nf4", "int8", adapters.base_as_loaded(plan)):
        why, fix = "frozen weights in 4 bits are nf4 with double quantisation", "use base=nf4"
        yield Problem(what=f"plan: frozen weights are stored in {lora.base}", why=why, fix=fix, field="tuning")


def _overrides(launch: Launch) -> Mapping[str, Word]:
    from meshwright.targets.overrides import by_flags

    return by_flags(launch.words)


TARGET = OneStrategyTarget(
    name="axolotl",
    title=TITLE,
    version="0.19.0 (2026-11)",
    says=SAYS,
    rules=RULES,
    beyond=_beyond,
    write=_files,
    start=_start,
    predicts_ahead=False,
    adapted=_ADAPTED,
    read=later("meshwright.targets.axolotl.read:read"),
    notes=seeing.NOTES,
    recognised=recognised,
    overrides=_overrides,
    beside=(deepspeed.CONFIG, hugging_face.ARGUMENTS),
    named=fine_tuning.engine_named,
    suggested=False,
    software="pytorch-eager-no-sync",
)
