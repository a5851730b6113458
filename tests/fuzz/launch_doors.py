"""Doors of launch files: folders of Accelerate, and scripts that start several jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.fuzz import mutate, samples
from tests.fuzz.cases import Case

LIMIT = ("--time-limit", "3")
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: false
  fsdp_activation_checkpointing: true
  fsdp_offload_params: false
  fsdp_state_dict_type: SHARDED_STATE_DICT
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 2
  parallelism_config_cp_size: 4
  parallelism_config_cp_comm_strategy: alltoall
"""
DEEPSPEED = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 8
deepspeed_config:
  gradient_accumulation_steps: 4
  zero_stage: 3
  offload_optimizer_device: cpu
  zero3_init_flag: true
"""
ARGUMENTS = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "bf16": True,
    "gradient_checkpointing": True,
    "optim": "adamw_torch",
    "accelerator_config": {"split_batches": False, "gradient_accumulation_kwargs": {"sync_each_batch": True}},
}
JOB = "torchrun --nproc_per_node {gpus} {program} --num-layers {layers} --hidden-size {hidden} {more}\n"
BETWEEN = (
    "",
    "\n",
    "wait\n",
    "&\n",
    "done\n",
    "fi\n",
    "exit 0\n",
    "cd /x && ",
    "sleep 1; ",
    "if true; then\n",
    "done &\n",
)


def accelerate(chance: Random) -> Case:
    """A configuration of Accelerate with the trainer's arguments beside it, as YAML and as JSON."""
    source, arguments = chance.choice((ACCELERATE, ACCELERATE, DEEPSPEED)), dict(ARGUMENTS)
    if chance.random() < 0.5:
        source = mutate.text(chance, source, changes=4)
    else:
        arguments = mutate.data(chance, arguments, changes=4)
    name, content = "accelerate.yaml", mutate.encoded(chance, source)
    if chance.random() < 0.3:
        document = mutate.data(chance, _nested(source), changes=4)
        name, content = chance.choice(["accelerate.json", "accelerate.yaml"]), mutate.written(chance, document)
    words = [
        "check",
        chance.choice(["qwen3-0.6b", "llama-3.1-8b"]),
        name,
        "--gpus",
        chance.choice(("8xH100", "2x4xA100-40")),
    ]
    words += LIMIT
    if chance.random() < 0.2:
        words += ["--from", chance.choice(["accelerate", "deepspeed", "hydra"])]
    if chance.random() < 0.2:
        words.append("--fix")
    files = {name: content, "training_args.json": mutate.written(chance, arguments)}
    return Case(words=(*words, *_json(chance)), files=files)


def several_jobs(chance: Random) -> Case:
    """Scripts that start more than one program, and which of them is meant."""
    parts = []
    for _ in range(chance.randint(1, 5)):
        if chance.random() < 0.3:
            parts.append(chance.choice(samples.scripts()))
            continue
        job = JOB.format(
            gpus=chance.choice(["8", "$GPUS", "${N:-8}"]),
            program=chance.choice(["pretrain_gpt.py", "train.py", "-m torchtitan.train", "$P"]),
            layers=chance.choice(["24", "32", "$L"]),
            hidden=chance.choice(["1024", "4096", "$((64*H))"]),
            more=chance.choice(["--micro-batch-size 1 --global-batch-size 64", "--save /ckpt/$1", "$@", ""]),
        )
        if chance.random() < 0.3:
            job = f"for L in {chance.choice(['24 32', '{1..3}', '$(seq 3)', '1'])}; do\n  {job}done\n"
        parts += [job, chance.choice(BETWEEN)]
    content = mutate.text(chance, "".join(parts), changes=4)
    words = ["check", chance.choice(["llama-3.1-8b", "gpt3-13b"]), "train.sh", "--gpus", "8xH100", *LIMIT]
    if chance.random() < 0.7:
        job = chance.choice(
            ["1", "2", "0", "99", "-1", "train", "1024", "train.sh:2", "train.sh:", mutate.word(chance)]
        )
        words += ["--job", job.replace("\0", "")]
    if chance.random() < 0.2:
        words.append("--fix")
    return Case(words=(*words, *_json(chance)), files={"train.sh": mutate.encoded(chance, content)})


def _nested(source: str) -> dict[str, object]:
    """The configuration as a document."""
    found: dict[str, object] = {}
    inner: dict[str, object] = found
    for line in source.splitlines():
        name, _, value = line.strip().partition(": ")
        if not value:
            inner = {}
            found[name.rstrip(":")] = inner
            continue
        own = inner if line.startswith(" ") else found
        own[name] = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else value
        own[name] = {"true": True, "false": False}.get(value, own[name])
    return found


def _json(chance: Random) -> tuple[str, ...]:
    return ("--json",) if chance.random() < 0.6 else ()


DRAWS: Sequence[Callable[[Random], Case]] = (accelerate, several_jobs)
