"""Launch scripts as plans, with every problem by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.shell import read_script
from meshwright.specs import PlanRow

HAND_WRITTEN = r"""#!/bin/bash
# A script as people write them.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE * $NNODES))
TP=4; PP=2
if [ -z "$1" ]; then
  SAVE="no where"
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE \
    --nnodes=$NNODES --master_port 6000"
GPT_ARGS="
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32
    --seq-length 8192 --max-position-embeddings 8192
    --micro-batch-size 1 --global-batch-size $((WORLD_SIZE * 4))
    --bf16 --swiglu --disable-bias-linear
"
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size=$PP   # stages
    --sequence-parallel
    --num-layers-per-virtual-pipeline-stage 4
)
MODEL_PARALLEL_ARGS+=(--use-distributed-optimizer --overlap-grad-reduce)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    $GPT_ARGS "${MODEL_PARALLEL_ARGS[@]}" \
    --recompute-activations \
    --save "$SAVE" 2>&1 | tee log.txt
"""


def test_a_hand_written_script_is_read() -> None:
    read = read_flags(HAND_WRITTEN)
    assert read.problems == ()
    assert read.row == PlanRow(
        tp=4, pp=2, vpp=4, dp=4, sharding="z1", mbs=1, gbs=128, schedule="interleaved", recompute="sel"
    )
    assert read.layout == (4,) * 8
    assert (read.model["num_layers"], read.model["ffn_hidden"]) == (32, 10880)


def test_what_only_the_shell_knows_is_reported() -> None:
    read = read_flags("torchrun --nproc_per_node 8 a.py --micro-batch-size $MBS --tensor-model-parallel-size `nvidia`")
    assert read.unresolved == ("MBS",)
    assert (read.row, read.problems) == (None, ())
    asked = {problem.field: f"{problem.why}; {problem.fix}" for problem in read.questions}
    assert asked["--micro-batch-size"] == "$MBS is not set in the script (script:1); give --env MBS=VALUE"
    assert "`nvidia` is not run" in asked["--tensor-model-parallel-size"]


def test_all_problems_of_a_configuration_come_together() -> None:
    read = read_flags(
        "--tensor-model-paralel-size 4 --pipeline-model-parallel-size two --micro-batch-size 1 "
        "--recompute-granularity ful --fp16=yes --global-batch-size 7 --cp-comm-type",
        devices=8,
    )
    text = str(InputError(read.problems))
    for piece in (
        "did you mean --tensor-model-parallel-size",
        "'two'",
        "did you mean full?",
        "it is a switch",
        "multiple of micro-batch 1 x dp 8",
        "--cp-comm-type has no value",
    ):
        assert piece in text


def test_instances_of_the_distributed_optimizer_are_groups() -> None:
    read = read_flags(
        "--micro-batch-size 1 --use-distributed-optimizer --num-distributed-optimizer-instances 4", devices=16
    )
    assert read.problems == ()
    assert (read.row.sharding, read.row.shard_group) == ("z1in", 4)


@pytest.mark.parametrize(
    ("options", "devices", "says"),
    [
        ("--tensor-model-parallel-size 3", 8, "multiple of tp 3"),
        ("--tensor-model-parallel-size 0", 8, "at least 1"),
        ("--tp-comm-overlap --tensor-model-parallel-size 2", 8, "needs sequence parallelism"),
        ("--num-experts 8 --expert-model-parallel-size 3", 8, "must divide tp x cp x dp = 8"),
        ("--num-experts 8 --tensor-model-parallel-size 2", 8, "--sequence-parallel is not given"),
        ("--context-parallel-size 4 --cp-comm-type a2a+p2p", 8, "two degrees"),
        ("--recompute-granularity full", 8, "needs --recompute-method"),
        ("--num-distributed-optimizer-instances 3 --use-distributed-optimizer", 8, "must divide dp x cp = 8"),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", 8, "taken as all"),
        ("--bf16", None, "number of devices is not said"),
    ],
)
def test_contradictions_are_named(options: str, devices: int | None, says: str) -> None:
    read = read_flags(f"--micro-batch-size 1 {options}", devices=devices)
    assert says in " ".join(f"{problem.what} {problem.why}" for problem in read.problems)


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ("--num-layers 32", (8, 8, 8, 8)),
        (
            "--num-layers 30 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            (7, 8, 8, 7),
        ),
        ("--num-layers 30 --decoder-first-pipeline-num-layers 6", (6, 8, 8, 8)),
        ("--num-layers 28 --decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6", (6, 8, 8, 6)),
        ("--num-layers 32 --num-virtual-stages-per-pipeline-rank 2", (4,) * 8),
        ("--num-layers 14 --pipeline-model-parallel-layout Et*3|t*4|t*4|t*3,L", (3, 4, 4, 3)),
        ("--num-layers 31", None),
        ("--num-layers 15 --pipeline-model-parallel-layout Et*3|t*4|t*4|t*3,L", None),
    ],
)
def test_splits_of_layers_are_read(options: str, layout: tuple[int, ...] | None) -> None:
    words = options.split()
    rest = "--hidden-size 64 --num-attention-heads 4 --pipeline-model-parallel-size 4 --micro-batch-size 1"
    read = read_flags([*words, *rest.split()], devices=4)
    assert read.layout == layout
    assert bool(read.problems) == (layout is None)


@given(st.text(max_size=200))
def test_junk_is_read_without_an_exception(text: str) -> None:
    assert read_flags(text).row is None


@pytest.mark.parametrize(
    "said",
    ["--patch-tokenizer-type Qwen2VLTokenizer", "--disable-vision-class-token", "--position-embedding-type mrope"],
)
def test_a_decoder_that_reads_images_is_told_apart(said: str) -> None:
    text = f"torchrun --nproc_per_node 8 pretrain_qwen.py --num-layers 4 --hidden-size 256 --micro-batch-size 1 {said}"
    problems = read_flags(read_script(text)).problems
    assert any("trains a decoder with an image tower" in problem.what for problem in problems), problems


@pytest.mark.parametrize(
    ("start", "devices"),
    [
        ("srun python pretrain_gpt.py", 128),
        ('srun bash -c "RANK=\\$SLURM_PROCID numactl --membind=0-3 python pretrain_gpt.py $ARGS"', 128),
        ("srun torchrun --nproc_per_node 4 --nnodes $SLURM_NNODES pretrain_gpt.py", 128),
        ("srun -n 64 python pretrain_gpt.py", 64),
    ],
)
def test_tasks_of_slurm_are_processes_where_nothing_else_starts_them(start: str, devices: int) -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=32\n#SBATCH --ntasks-per-node=4\n"
    said = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 --bf16"
    options = f"export ARGS='{said} --max-position-embeddings 64 --global-batch-size 128 --vocab-size 1024'\n"
    found = read_flags(head + options + (start if "$ARGS" in start else f"{start} $ARGS") + "\n")
    assert found.row is not None
    assert (found.started, found.row.devices) == (devices, devices)


@pytest.mark.parametrize(
    ("more", "noted"),
    [
        ("--DDP-impl local --checkpoint-activations", True),
        ("--DDP-impl local --use-flash-attn", False),
        ("--checkpoint-activations --attention-backend unfused", False),
        ("--recompute-activations", False),
    ],
)
def test_scripts_of_earlier_releases_are_said_to_be_priced_with_todays_attention(more: str, noted: bool) -> None:
    sizes = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --fp16"
    read = read_flags(f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} --micro-batch-size 4 {more}\n")
    assert any("priced as today's fused kernel" in note for note in read.notes) == noted


@pytest.mark.parametrize(("experts", "ep", "wrong"), [(64, 8, False), (4, 4, True)])
def test_experts_of_megablocks_are_spread_over_data_ranks(experts: int, ep: int, wrong: bool) -> None:
    sizes = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --bf16"
    own = f"--moe-num-experts={experts} --moe-loss-weight=0.1 --moe-expert-model-parallelism"
    read = read_flags(f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} --micro-batch-size 4 {own}\n")
    assert read.row is not None
    assert (read.row.ep, read.row.dispatcher) == (ep, "alltoall")
    assert (read.model["experts"], read.model["top_k"]) == (experts, 1)
    assert any("do not divide over 8 data ranks" in one.why for one in read.problems) == wrong


@pytest.mark.parametrize(("positions", "told"), [("1024", True), ("2048", False), ("4096", False)])
def test_fewer_positions_than_tokens_stop_the_program(positions: str, told: bool) -> None:
    options = f"--seq-length 2048 --max-position-embeddings {positions} --position-embedding-type rope"
    found = read_flags(f"torchrun --nproc_per_node 8 pretrain_gpt.py {options} --micro-batch-size 1\n")
    assert (f"--max-position-embeddings is {positions}" in {problem.what for problem in found.problems}) is told


def test_positions_that_nobody_knows_are_not_asked_for() -> None:
    options = "--seq-length $1 --max-position-embeddings $2 --micro-batch-size 1"
    found = read_flags(f"torchrun --nproc_per_node 8 pretrain_gpt.py {options}\n")
    assert "--max-position-embeddings" not in "".join(problem.what for problem in found.questions)


def test_groups_of_interleaved_micro_batches_are_read() -> None:
    said = "--pipeline-model-parallel-size 3 --micro-batch-size 1 --global-batch-size 16 --num-layers 24 "
    chunks = "--num-virtual-stages-per-pipeline-rank 2 --microbatch-group-size-per-virtual-pipeline-stage"

    grouped = read_flags(f"{said} {chunks} 4", devices=3)
    assert grouped.row.schedule == "interleaved-group4"
    assert grouped.row.format().startswith("pp3.vpp2")
    assert read_flags(f"{said} {chunks} 3", devices=3).row.schedule == "interleaved"
