"""NeMo Automodel: YAML of its training recipe, for any model of the transformers library.

Keys are those of nemo-automodel 0.7.0 (2026-11), https://github.com/NVIDIA-NeMo/Automodel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.plan_json import write_job
from meshwright.formats.torch_loader import COMPUTE_FILE
from meshwright.specs.job import Job
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow, default_schedule
from meshwright.targets import hugging_face, pytorch_pipeline
from meshwright.targets.contract import PLAN_FILE, Files, Target, TargetFiles, file_of
from meshwright.targets.keys import KeyReader, Keys, key_problems, known_keys, nested, table_of, yaml_text
from meshwright.targets.sayable import ANY, Plan, Rule, only, refusals

TITLE = "NeMo Automodel"
CONFIG = "automodel.yaml"
_D = "distributed."
_OFFLOAD = "torch.distributed.fsdp.CPUOffloadPolicy"
_ENDS = ("model.norm", "lm_head")
_DTYPES = "nemo_automodel/components/distributed/config.py of nemo-automodel 0.7.0"
SAYS = hugging_face.RECOMPUTE | {
    "tp": ANY,
    "cp": ANY,
    "pp": ANY,
    "vpp": ANY,
    "dp": ANY,
    "layers": ANY,
    "schedule": ANY,
    "tensor.sequence_parallel": ANY,
    "tensor.overlap": only("ring", "bulk", fix="use tpov, or leave it out"),
    "context.kinds": only(("ag",), (), why="keys and values are gathered over context ranks", fix="use cp with ag"),
    "expert.ep": ANY,
    "data.zero": only(0, 3, why="data ranks hold whole copies (DDP), or shards of everything (FSDP2)", fix="use fsdp"),
    "data.family": ANY,
    "data.reshard": ANY,
    "offload.optimizer": only(0.0, 1.0),
    "offload.gradients": only(0.0, 1.0),
    "offload.weights": only(0.0, 1.0),
    "optimizer": only("adamw", "adam"),
    "precision": only("bf16", "fp32"),
}
RULES = (
    *pytorch_pipeline.RULES,
    Rule(
        field="data.family",
        holds=lambda plan: (plan.strategy.data.zero == 3) == (plan.strategy.data.family == "fsdp"),
        why="FSDP2 keeps the fp32 shard as the main copy of the weights",
        fix="use fsdp",
        source=_DTYPES,
    ),
    Rule(
        field="data.zero",
        holds=lambda plan: (
            plan.strategy.data.zero == 3
            or plan.strategy.tp * plan.strategy.cp * plan.found.pp * plan.strategy.expert.ep == 1
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
        field="tensor.overlap",
        holds=lambda plan: plan.settings["tensor.overlap"] == "bulk" or bool(plan.settings["tensor.sequence_parallel"]),
        why="asynchronous tensor parallelism needs sequence parallelism",
        fix="leave out nosp, or tpov",
        source=_DTYPES,
    ),
    Rule(
        field="offload.optimizer",
        holds=lambda plan: (
            len({plan.strategy.offload.optimizer, plan.strategy.offload.gradients, plan.strategy.offload.weights}) == 1
        ),
        why="FSDP2 offloads weights, gradients and optimizer states together",
        fix="use off-wog, or none",
        source="torch.distributed.fsdp.CPUOffloadPolicy of PyTorch 2.13",
    ),
    Rule(
        field="offload.weights",
        holds=lambda plan: plan.strategy.offload.weights == 0 or plan.strategy.data.zero == 3,
        why="only FSDP2 offloads",
        fix="use fsdp",
        source=_DTYPES,
    ),
)


def refused(job: Job) -> tuple[Problem, ...]:
    """What Automodel cannot run of a plan."""
    plan, problems = refusals(TITLE, job, SAYS, RULES)
    return (*problems, *hugging_face.shape_problems(plan)) if plan else problems


def configuration(plan: Plan) -> Keys:
    """The keys of the recipe."""
    strategy, found = plan.strategy, plan.found
    data, full = strategy.data, strategy.recompute.kind == "full"
    wide = (strategy.precision or plan.workload.precision).activations == "fp32"
    sharded = data.zero == 3
    mbs = found.pipeline.micro_batch
    flat: Keys = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler.global_batch_size": plan.workload.global_batch,
        "step_scheduler.local_batch_size": mbs * (found.pipeline.num_micro_batches if found.pp > 1 else 1),
        "step_scheduler.max_steps": 20,
        "model._target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_config",
        "model.pretrained_model_name_or_path": "${oc.env:MODEL}",
        # Main weights in fp32, computed with in 16 bits.
        "model.torch_dtype": "float32",
        f"{_D}strategy": "fsdp2" if sharded else "ddp",
        f"{_D}activation_checkpointing": full,
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
            f"{_D}enable_async_tensor_parallel": strategy.tp > 1 and plan.settings["tensor.overlap"] == "ring",
            f"{_D}reshard_after_forward": data.reshard,
            f"{_D}mp_policy._target_": "torch.distributed.fsdp.MixedPrecisionPolicy",
            f"{_D}mp_policy.param_dtype": "float32" if wide else "bfloat16",
            f"{_D}mp_policy.reduce_dtype": "float32",
            f"{_D}offload_policy._target_": "torch.distributed.fsdp.CPUOffloadPolicy"
            if strategy.offload.weights
            else None,
        }
    elif not wide:
        flat[f"{_D}autocast_dtype"] = "bfloat16"
    if found.pp > 1:
        name = pytorch_pipeline.class_of(plan)
        looped = "1F1B" if found.vpp == 1 else "Interleaved1F1B"
        stages = pytorch_pipeline.modules_of_stages(plan, "model.embed_tokens", "model.layers", _ENDS)
        flat |= {
            f"{_D}pipeline.pp_schedule": name or looped,
            f"{_D}pipeline.pp_schedule_csv": None if name else COMPUTE_FILE,
            f"{_D}pipeline.pp_microbatch_size": mbs,
            f"{_D}pipeline.module_fqns_per_model_part": stages,
        }
    return nested(flat) | _DATA | _optimizer(plan)


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


def _files(job: Job, estimate: StepEstimate) -> TargetFiles:
    problems = refused(job)
    plan, _ = refusals(TITLE, job, SAYS, RULES)
    if problems or plan is None:
        raise UnsupportedError(problems, code="MW420")
    head = (f"automodel {CONFIG}; keys of nemo-automodel 0.7.0", f"plan: {job.name or 'uneven stages'}")
    files = (
        (PLAN_FILE, write_job(job)),
        (CONFIG, yaml_text(configuration(plan), head)),
        *pytorch_pipeline.schedule_files(plan),
    )
    start = f"MODEL=id/or/folder automodel {CONFIG} --nproc-per-node {plan.per_node}"
    if plan.nodes > 1:
        start = f"MODEL=id/or/folder {hugging_face.launcher(plan)} -m nemo_automodel.cli.app {CONFIG}"
    return TargetFiles(files=files, notes=tuple(_notes(plan)), start=start)


def _notes(plan: Plan) -> Iterator[str]:
    if not plan.strategy.data.overlap:
        yield "FSDP2 and DDP overlap their collectives"
    if plan.workload.optimizer == "adam":
        yield "its optimizer is AdamW"


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A recipe's YAML as a plan.

    Args:
        files: the YAML, and the schedule's file where there is one.
        devices: of the job; by default what the degrees multiply to, where `dp_size` is said.

    Raises:
        InputError: the text is no YAML.
    """
    file = file_of(files, CONFIG, _recognised)
    keys = table_of(file[1], "YAML", "Automodel configuration")
    checked = {name: keys[name] for name in ("distributed", "step_scheduler") if isinstance(keys.get(name), dict)}
    reader = KeyReader(keys=keys, file=file, problems=list(key_problems(TITLE, checked, known_keys(__name__))))
    row, layout = _row(reader, files, devices)
    wide = reader.word(f"{_D}mp_policy.param_dtype", "bfloat16").endswith("float32")
    workload: dict[str, Any] = {
        "precision": PRECISIONS["fp32" if wide else "bf16"],
        "optimizer": "adamw",
        "seq_len": reader.get("dataset.seq_len"),
    }
    if row is not None:
        workload["global_batch"] = row.gbs
    return LaunchFile(row=row, layout=layout, workload=workload, said=reader.said(), problems=tuple(reader.problems))


def _row(reader: KeyReader, files: Files, devices: int | None) -> tuple[PlanRow | None, tuple[int, ...] | None]:
    sizes = ("tp_size", "cp_size", "pp_size", "ep_size", "dp_replicate_size")
    tp, cp, pp, ep, replicate = (reader.degree(f"{_D}{name}") for name in sizes)
    ddp = reader.word(f"{_D}strategy", "fsdp2") == "ddp"
    local, gbs = reader.degree("step_scheduler.local_batch_size"), reader.degree("step_scheduler.global_batch_size", 32)
    dp = reader.get(f"{_D}dp_size") or (devices // (tp * cp * pp) if devices else None)
    if not isinstance(dp, int) or dp < 1:
        reader.refuse(f"{_D}dp_size", dp, "it is what is left of the devices", "say --gpus")
        return None, None
    mbs = reader.degree(f"{_D}pipeline.pp_microbatch_size") if pp > 1 else local
    if gbs % (local * dp) or local % mbs:
        why = f"must be a multiple of local_batch_size {local} x data ranks {dp}"
        reader.refuse("step_scheduler.global_batch_size", gbs, why)
        return None, None
    stages = reader.get(f"{_D}pipeline.module_fqns_per_model_part")
    schedule, vpp = None, 1
    if pp > 1:
        count = len(stages) if isinstance(stages, list) and stages else pp
        vpp, said = max(1, count // pp), reader.word(f"{_D}pipeline.pp_schedule", "1f1b")
        schedule = pytorch_pipeline.schedule_name(said.replace("_", ""))
        csv = next((text for name, text in files.items() if name.endswith(COMPUTE_FILE)), None)
        if reader.get(f"{_D}pipeline.pp_schedule_csv"):
            schedule = pytorch_pipeline.schedule_of_file(csv or "", pp, vpp, gbs // (mbs * dp))
        if schedule is None:
            reader.refuse(f"{_D}pipeline.pp_schedule", said, "no plan runs it, or the file of its order is not there")
    reshard = reader.switch(f"{_D}reshard_after_forward", default=pp == 1)
    hybrid = 1 < replicate < dp
    row = PlanRow(
        tp=tp,
        sp=tp == 1 or reader.switch(f"{_D}sequence_parallel"),
        tp_overlap="ring" if tp > 1 and reader.switch(f"{_D}enable_async_tensor_parallel") else "bulk",
        cp=(("ag", cp),) if cp > 1 else (),
        pp=pp,
        vpp=vpp,
        ep=ep,
        dp=dp,
        sharding="z0" if ddp else "hsdp" if hybrid else "fsdp" if reshard else "fsdp-keep",
        shard_group=dp // replicate * cp if hybrid and not ddp else 0,
        mbs=mbs,
        gbs=gbs,
        schedule=schedule or default_schedule(vpp),
        recompute=_recompute(reader),
        offload="wog" if reader.get(f"{_D}offload_policy") is not None else "",
    )
    layout = pytorch_pipeline.layers_of_modules(stages, "model.layers") if isinstance(stages, list) else None
    return row, layout


def _recompute(reader: KeyReader) -> str:
    said = reader.word(f"{_D}activation_checkpointing", "false")
    if said == "selective":
        reader.refuse(f"{_D}activation_checkpointing", said, "it keeps products, which a row does not say", "use full")
    return "full" if said in ("true", "full", "on", "yes", "enabled") else "none"


def _recognised(name: str, text: str) -> bool:
    return PurePath(name).suffix in (".yaml", ".yml") and ("nemo_automodel" in text or "step_scheduler:" in text)


TARGET = Target(
    name="automodel",
    title=TITLE,
    version="0.7.0 (2026-11)",
    files=_files,
    refused=refused,
    read=read,
    recognised=_recognised,
    beside=(COMPUTE_FILE,),
    software="pytorch-eager",
)
