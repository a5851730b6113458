"""The questions: command lines of `meshwright` as a user types them, without `--json`, which every one of them gets.

They are spread over every verb, every token of a plan in one line, every schedule, families of models and makers of
devices, one kind of device and several, and what is refused. Files they name lie in `files` or `tests/data`, or are
made first by a line of MADE. `QUICK` ones run in `make test`, all in `make answers`. A new line needs an answer:
`python -m tests.answers.record WORDS-OF-THE-LINE`.
"""

from __future__ import annotations


def _lines(text: str) -> tuple[str, ...]:
    """Lines of a block, without empty ones and headings."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def _each(line: str, words: str) -> tuple[str, ...]:
    """A line with `*` replaced by each of these words."""
    return tuple(line.replace("*", word) for word in words.split())


def verb_of(line: str) -> str:
    """The verb of a line: `plan`, `models show`."""
    words = [word for word in line.split() if "=" not in word]
    return " ".join(words[:2]) if words[0] in ("calculon", "clusters", "gpus", "models") else words[0]


MADE = {
    "small.plans": "plan gpt2 --gpus 4xH100 --gbs 16 --top 3 -o small.plans",
    "dense.plans": "plan llama-3.1-8b --gpus 16xH100 --gbs 256 --top 3 -o dense.plans",
    "megatron.plans": "plan llama-3.1-8b --gpus 16xH100 --gbs 256 --top 2 --target megatron -o megatron.plans",
    "experts.plans": "plan mixtral-8x7b --gpus 16xH100 --gbs 256 --top 3 -o experts.plans",
    "mixed.plans": "plan llama-3.1-8b --gpus 8xH100,8xA100-80 --gbs 128 --top 2 -o mixed.plans",
    "regions.plans": "plan llama-3.1-8b --cluster regions.toml --gbs 128 --top 2 -o regions.plans",
    "measured.plans": "plan tiny --cluster alpha-beta.toml --profiles profiles --gbs 48 -o measured.plans",
    "piped.plans": "plan gpt2 --gpus 4xH100 --gbs 16 --pin pp=4 --pin tp=1 --schedule zb-h1 --top 1 -o piped.plans",
    "interleaved.plans": "estimate llama-3-8b --plan pp4.vpp2.dp2.z1.mbs1.gbs32 --gpus 8xH100 -o interleaved.plans",
    "forty.plans": "plan llama-3.1-8b --gpus 5x8xH100 --gbs 240 --top 1 -o forty.plans",
    "launch": "export megatron.plans#1 --to megatron -o launch",
    "learned.json": (
        "calibrate --from-log steps.csv --model llama-3.1-8b --plan tp2.mbs1.gbs128 --gpus 8xH100 -o learned.json"
    ),
    "order": "schedule zb-h2 --p 4 --m 8 --csv order",
    "library": "gpus add mine.toml --library library",
    "shelf": "models add config.json --name toy-llama --library shelf",
}
"""Files that questions read, each with the line that writes it."""


PLAN = _lines("""
    # One kind of device, dense
    plan gpt2 --gpus 4xH100 --gbs 16
    plan gpt2 --gpus 1xRTX-4090 --gbs 8
    plan gpt2 --gpus 4xH100 --gbs 16 --pareto --top 2
    plan gpt2-xl --gpus 8xV100-32 --gbs 64 --dtype fp16
    plan llama-3.1-8b --gpus 8xH100
    plan config.json --gpus 4xA100-40 --gbs 32
    plan llama-3.1-8b --gpus 6xH100 --gbs 96
    plan mistral-7b --gpus 16xA100-80 --tokens-per-step 1048576
""")

PLAN_SLOW = _lines("""
    # One kind of device, dense
    plan llama-3.1-70b --gpus 64xH100
    plan llama-3.1-70b --gpus 8x8xH200 --seq 8192 --gbs 512 --top 2
    plan llama-3.1-405b --gpus 1024xH100 --top 2
    plan llama-3.1-405b --gpus 8xH100
    plan llama-3.1-8b --gpus 104xH100 --gbs 1024 --top 2
    plan llama-3-70b --gpus 5x8xH100 --gbs 240 --top 2
    plan llama-3.2-1b --gpus 16xL40S --gbs 128 --top 2
    plan llama-2-13b --cluster one-kind.toml --gbs 256 --top 2
    plan llama-3.1-8b --gpus 8xH100 --seq 131072 --gbs 8 --top 2
    plan llama-3.1-8b --gpus 32xMI300X --dtype fp8 --gbs 256 --top 2
    plan llama-3-8b --gpus 72xGB200 --gbs 576 --top 2
    plan gpt3-175b --gpus 1024xA100-80 --gbs 1536 --top 2
    plan megatron-22b --gpus 8xA100-80 --gbs 4 --dtype fp16 --top 2
    plan bloom-7b1 --gpus 64xTPU-v5p --gbs 512 --top 2
    plan falcon-40b --gpus 64xGaudi2 --gbs 512 --top 2
    plan opt-66b --gpus 64xTrainium2 --gbs 512 --top 2
    plan gemma-2-9b --gpus 32xH100 --gbs 256 --top 2
    plan gemma-3-4b --gpus 8xB200 --gbs 128 --top 2
    plan palm-540b --gpus 6144xTPU-v4 --gbs 2048 --top 1
    # Mixtures of experts
    plan mixtral-8x7b --gpus 32xH100 --gbs 256 --top 3
    plan experts.json --gpus 8xA100-80 --gbs 64 --top 3
    plan deepseek-v3 --gpus 256xH800 --pin ep=64 --top 2
    plan deepseek-v2-lite --gpus 16xH100 --gbs 256 --expert-load 1.4 --top 2
    plan gpt-oss-20b --gpus 16xH100 --gbs 256 --top 2
    plan llama-4-scout --gpus 64xH200 --gbs 256 --top 2
    plan grok-1 --gpus 128xH100 --gbs 512 --top 2
    # Objectives and limits
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --objective memory --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --objective cost --price 2.5 --top 2
    plan llama-3.1-8b --gpus 32xH100 --gbs 256 --max-step-time 10s --price 2.5 --top 2
    plan llama-3.1-8b --gpus 32xH100 --gbs 256 --max-price-per-step 0.2 --price 2.5 --top 2
    plan llama-3.1-8b --gpus 32xH100 --gbs 256 --tokens 1T --days 90 --price 2.5 --top 2
    plan llama-3.1-8b --gpus 32xH100 --gbs 256 --tokens 100B --max-price 100000 --price 2.5 --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --pareto --price 2 --top 2
    # Pins, what is left out, schedules, targets
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --pin tp=4 --pin pp=2 --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --pin tp=2,4 --pin cp=2 --pin cp_kind=a2a --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --pin sharding=fsdp --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --pin hsdp --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --pin rc-full --pin tpov --pin tp=2 --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --forbid cp --forbid fsdp --forbid tp=8 --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --forbid recompute --forbid vpp --top 2
    plan mixtral-8x7b --gpus 16xH100 --gbs 256 --pin etp=2 --pin ep=4 --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --schedule all --top 3
    plan llama-3.1-8b --gpus 16xH100 --gbs 64 --schedule zb-h1,zb-v,1f1b --pin pp=4 --top 3
    plan llama-3.1-8b --gpus 16xH100 --gbs 64 --schedule dualpipev,hanayo --pin pp=4 --top 3
    plan gpt2 --gpus 4xH100 --gbs 16 --methods offload,tensor
    plan deepseek-v2-lite --gpus 16xH100 --gbs 256 --methods dispatcher,ep_overlap,sharding --top 2
    plan gpt2 --gpus 4xH100 --gbs 16 --methods all --top 2
    plan llama-3.1-70b --gpus 64xH100 --target megatron --top 2
    plan deepseek-v3 --gpus 2048xH800 --pin ep=64 --target megatron --tokens 15T --top 1
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --attention-kernel materialised --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 256 --optimizer sgd --dtype fp32 --top 2
    plan llama-3.1-8b --gpus 8xH100 --gbs 128 --calibration learned.json --top 2
    # Unequal and very long sequences
    plan llama-3.1-8b --gpus 16xH100 --gbs 64 --lengths lognormal:mean=1200,sigma=1.1,max=8192 --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 64 --lengths lognormal:mean=1200,sigma=1.1,max=8192 --packing bins --top 2
    plan llama-3.1-8b --gpus 16xH100 --gbs 64 --lengths histogram:512=.6,8192=.4 --packing dynapipe --pin pp=4 --top 2
    plan llama-3.1-8b --gpus 32xH100 --lengths lognormal:mean=4000,sigma=1.8,max=131072 --dynamic-cp --top 2
    plan llama-3.1-8b --gpus 64xH100 --seq 1048576 --gbs 8 --loss-tiles 16 --top 2
    plan llama-3.1-8b --gpus 256xH100 --seq 4194304 --gbs 8 --mlp-tiles 8 --loss-tiles 16 --top 2
    plan llama-3.1-8b --gpus 8xH100 --seq 2M --gbs 8
    # Parallelizers
    plan llama-3-8b --gpus 8xH100 --gbs 64 --parallelizer native --top 2
    plan llama-3-8b --gpus 8xH100 --gbs 64 --parallelizer layerwise --top 2
    plan gpt2 --gpus 4xH100 --gbs 16 --parallelizer calculon --top 2
    plan config.json --gpus 2xH100,2xA100-80 --gbs 8 --parallelizer native,compiler --top 1
    plan gpt2-medium --gpus 2xH100,2xA100-80 --gbs 16 --parallelizer native,layerwise --top 2
""")

MIXED = _lines("""
    plan llama-3.1-8b --gpus 8xH100,8xA100-80 --gbs 128 --top 2
    plan gpt2 --gpus 2xH100,2xA100-80 --gbs 16 --top 2
""")

MIXED_SLOW = _lines("""
    plan llama-3.1-70b --gpus 64xH100,64xA100-80 --top 2
    plan llama-3.1-70b --gpus 48xH100,40xA100-80,40xL40S --top 2
    plan llama-3.1-70b --gpus 16xH100,16xA100-80,16xH800,16xL40S --top 2
    plan mixtral-8x7b --gpus 16xH100,16xA100-80 --gbs 256 --top 2
    plan mixtral-8x22b --gpus 32xH100,32xA100-80,32xL40S --gbs 256 --top 1
    plan llama-3-8b --gpus 8xA100-80,8xV100-32 --dtype fp16 --gbs 128 --top 2
    plan llama-3-8b --gpus 8xA100-80,8xV100-32 --gbs 128 --top 2
    plan llama-3.1-8b --cluster linked.toml --gbs 256 --top 2
    plan llama-3.1-8b --cluster bandwidth.csv --gbs 240 --top 2
    plan llama-3.1-8b --cluster bandwidth.csv --gbs 240 --tolerance 1 --top 2
    plan llama-3.1-8b --gpus 16xH100,16xH800 --gbs 256 --tolerance 1.5 --top 2
    plan llama-3.1-8b --cluster nodes.json --gbs 256 --top 2
    plan llama-3-8b --cluster regions.toml --gbs 128 --objective cost --top 2
    plan llama-3-8b --cluster regions.toml --gbs 128 --max-step-time 12s --top 2
    plan llama-3-8b --cluster regions.toml --gbs 128 --max-price-per-step 1 --top 2
    plan llama-3-8b --cluster regions.toml --gbs 128 --objective memory --tokens 1T --top 2
    plan llama-3.1-8b --gpus 16xH100,16xA100-80 --gbs 256 --pin tp=4 --forbid cp --top 2
    plan llama-3.1-8b --gpus 16xH100,16xA100-80 --gbs 256 --forbid vpp --forbid fsdp --price 2 --top 2
    plan llama-3.1-8b --gpus 16xH100,16xA100-80 --gbs 256 --target megatron --top 1
    plan llama-3.1-8b --gpus 8xH100,16xMI300X --gbs 256 --top 1
    plan gemma-2-9b --gpus 8xH200,8xA100-40,8xL40S --gbs 192 --top 1
    # Measured layers
    plan tiny --cluster alpha-beta.toml --profiles profiles --gbs 48
    plan tiny --cluster alpha-beta.toml --profiles profiles --gbs 48 --objective cost
    plan tiny --cluster alpha-beta.toml --profiles profiles --gbs 20 --top 3
    plan tiny --cluster alpha-beta.toml --profiles profiles --gbs 48 --max-step-time 2s
    plan tiny --cluster alpha-beta.toml --profiles profiles --gbs 48 --max-price-per-step 0.01
    # After a loss or a gain
    plan --replan-from dense.plans#1 --lost 8xH100 --top 2
    plan --replan-from dense.plans#1 --lost 3,9 --added 16xH100 --top 2
    plan --replan-from dense.plans#2 --added 8xA100-80 --top 2
    plan --replan-from forty.plans --lost 8-15 --top 2
    plan --replan-from experts.plans#1 --added 8xH100 --pin ep=8
    plan --replan-from mixed.plans#1 --lost 8xA100-80 --top 2
    plan --replan-from mixed.plans#1 --added 8xH100 --top 2
""")

ROWS = """
    tp8.rc-full  tp4.dp2.z1.mbs1.gbs64  tp4.nosp.dp2.z1.mbs1.gbs64  tp4.dp2.z1.mbs1.gbs64.tpov
    tp2.pp4.mbs1.gbs64  tp2.pp2.dp2.z1.mbs2.gbs64.nodpov
    pp4.vpp4.dp2.z1.mbs1.gbs64  pp8.mbs1.gbs64.rc-sel  pp2.tp4.mbs1.gbs32.gpipe
    cp2.dp4.z1.mbs1.gbs64  cp4-a2a.dp2.z2.mbs1.gbs64  cp2-ag.tp2.dp2.z1.mbs1.gbs64  cp4-a2a2xp2p2.dp2.z1.mbs1.gbs64
    dp8.z0.mbs1.gbs64  dp8.z1.mbs1.gbs64  dp8.z2.mbs1.gbs64  dp8.z3.mbs1.gbs64.nodpov
    dp8.fsdp.mbs1.gbs64  dp8.fsdp-keep.mbs2.gbs64  dp8.hsdp4.mbs1.gbs64  cp2.dp4.hsdp4.mbs1.gbs64
    dp8.z1.mbs2.gbs64.rc-full  dp8.z1.mbs2.gbs64.rc-sel  dp8.z1.mbs2.gbs64.rc-block8  dp8.z1.mbs2.gbs64.rc-uni4
    pp4.dp2.z1.mbs1.gbs64.rc-block4  pp4.vpp2.dp2.z1.mbs1.gbs64.rc-uni2
    dp8.z1.mbs1.gbs64.off-o  dp8.fsdp.mbs1.gbs64.off-w  tp8.mbs1.gbs64.off-a  dp8.z2.mbs1.gbs64.off-wao
    tp2.pp2.dp2.z1.mbs1.gbs64.off-o.tpov.rc-sel
"""

ONE_CHUNK = "zb-h1 zb-h2 zb-auto dualpipe seq1f1b pipedream-flush chimera avgpipe mixpipe pipedream pipedream-2bw bpipe"
TWO_CHUNKS = "zb-v v-half v-min interleaved-zb dualpipev breadth-first hanayo ftpipe"

ESTIMATE = (
    *_each("estimate llama-3-8b --gpus 8xH100 --plan *", ROWS),
    *_each("estimate llama-3-8b --gpus 8xH100 --plan tp2.pp4.mbs1.gbs16.*", f"{ONE_CHUNK} bamboo ftpipe dynapipe"),
    *_each("estimate llama-3-8b --gpus 8xH100 --plan tp2.pp4.vpp2.mbs1.gbs16.*", TWO_CHUNKS),
    *_each(
        "estimate mixtral-8x7b --gpus 16xH100 --gbs 64 --plan *", "ep8.dp16.z1 tp2.ep4.etp2.dp8.fsdp tp4.ep2.dp4.z1"
    ),
    *_lines("""
    estimate mixtral-8x7b --plan tp2.ep4.dp4.z1.rc-full.gbs64 --gpus 8xH100 --expert-load 2
    estimate mixtral-8x7b --plan tp2.ep4.dp4.z1.rc-full.gbs64 --gpus 8xH100 --attention-kernel materialised
    estimate experts.json --plan pp2.ep4.dp4.z1.mbs1.gbs64 --gpus 8xA100-80
    estimate deepseek-v3 --plan tp2.pp16.ep64.z1.mbs1.rc-full --gpus 1024xH800
    estimate qwen3-30b-a3b --plan ep8.dp8.z1.mbs1.rc-full.gbs64 --gpus 8xH200
    estimate gpt3-175b --plan tp8.pp16.vpp6.dp3.mbs1.rc-full --gpus 384xA100-80 --gbs 1536 --dtype fp16
    estimate megatron-1t --plan tp8.pp64.mbs1.rc-full --gpus 3072xA100-80 --gbs 3072 --price 2
    estimate gemma-2-9b --plan tp4.dp2.z1.mbs1 --gpus 8xH100 --gbs 64 --seq 8192
    estimate falcon-7b --plan dp8.z1.mbs1 --gpus 8xA100-40 --gbs 64
    estimate llama-3.1-8b --plan tp2.cp4.mbs1 --gpus 8xH100 --seq 65536 --gbs 4
    estimate llama-3.1-8b --plan tp2.dp4.z1.mbs1 --gpus 8xH100 --gbs 64 --dtype fp8
    estimate llama-3.1-8b --plan tp8.mbs1 --gpus 8xH100 --gbs 64 --dtype fp32
    estimate gpt2-xl --plan dp8.mbs4 --gpus 8xV100-16 --gbs 64 --dtype fp16
    estimate llama-3.1-8b --plan tp2.dp4.z1.mbs1 --gpus 8xH100 --gbs 64 --attention-kernel materialised
    estimate llama-3.1-8b --plan tp2.dp4.z1.mbs1 --gpus 8xH100 --gbs 64 --tokens 1T --price 2.5
    estimate llama-3.1-8b --plan tp2.dp4.z1.mbs1 --gpus 8xH100 --tokens-per-step 524288
    estimate llama-3.1-8b --plan tp2.dp4.z1.mbs1 --gpus 8xH100 --gbs 64 --calibration learned.json
    estimate config.json --plan pp2.dp2.mbs1 --gpus 4xT4 --gbs 16 --dtype fp16
    estimate llama-3-8b --plan tp2.pp4.mbs1.gbs64 --gpus 8xH100 --schedule all
    estimate llama-3-8b --plan tp2.pp4.vpp2.mbs1.gbs64 --gpus 8xH100 --schedule interleaved,zb-v,hanayo
    estimate llama-3-8b --plan tp4.pp2.dp4.z1.mbs1 --cluster one-kind.toml --gbs 64
    estimate llama-3-8b --plan tp4.pp2.dp2.z1.mbs1.rc-full --gpus 16xTrainium2 --gbs 16
    estimate --plan small.plans#2
    estimate --plan mixed.plans#1
    estimate --plan regions.plans#1
    estimate --plan experts.plans#1
    """),
    *_each(
        "estimate llama-3.1-8b --plan tp2.dp4.z1.mbs1.gbs64 --gpus 8xH100 --optimizer *",
        "adamw sgd sgd-momentum muon lion adamw-8bit paged-adamw-8bit adafactor shampoo:block=1024 soap galore:rank=64",
    ),
    *_lines("""
    estimate llama-3.1-8b --plan dp8.z1.mbs1.gbs64 --gpus 8xB200 --dtype mxfp8 --weight-dtype fp8 --grad-dtype bf16
    estimate llama-3.1-8b --plan dp8.z1.mbs1.gbs64 --gpus 8xH100 --dtype fp8 --bf16-first 2 --bf16-last 1
    estimate llama-3.1-8b --plan dp8.z1.mbs1.gbs64 --gpus 8xH100 --main-copy none --grad-dtype bf16 --moment-dtype bf16
    estimate llama-3.1-8b --plan dp8.z2.mbs1.gbs64 --gpus 8xH100 --reduce-dtype bf16 --gather-dtype int8
    estimate llama-3.1-8b --plan tp2.dp4.z1.mbs1.gbs64 --gpus 8xA100-80 --dtype int8
    estimate llama-3.1-8b --plan tp2.dp4.z1.mbs1.gbs64 --gpus 8xH100 --dtype nvfp4
    estimate qwen3-30b-a3b --plan ep8.dp8.z1.mbs1.rc-full.gbs64 --gpus 8xH200 --dtype fp8-block --dispatch-dtype fp8
    plan llama-3.1-8b --gpus 8xH100 --gbs 64 --optimizer muon --dtype fp8-block --weight-dtype fp8 --top 2
    """),
    *_each(
        "estimate llama-3-8b --plan tp4.dp2.z1.mbs1.gbs16.rc-full --gpus *",
        """8xA100-PCIe-80 8xH20 8xH100-NVL 8xB200 8xGB300 8xRTX-6000-Ada 8xA6000 8xMI250X 8xMI355X 8xTPU-v4 8xTPU-v6e
        8xAscend-910B 8xGaudi3 8xGH200-96""",
    ),
)

CHECK = _lines("""
    check llama-3-8b --plan tp2.dp4.z1.mbs1.gbs64 --gpus 8xH100
    check llama-3-8b --plan tp8.rc-full --gpus 8xH100 --gbs 64
    check llama-3-8b --plan tp1.z0.mbs8.gbs64 --gpus 8xH100
    check llama-3-8b --plan tp3 --gpus 8xH100
    check llama-3-8b --plan tp2.dp2 --gpus 8xH100
    check llama-3-8b --plan pp8.vpp5.z1.gbs64 --gpus 8xH100
    check llama-3-8b --plan ep4.z1 --gpus 8xH100
    check llama-3-8b --plan mbs3.z1.gbs1024 --gpus 8xH100
    check llama-3-8b --plan pp4.zb-v.z1.mbs1.gbs64 --gpus 8xH100
    check llama-3-8b --plan dp8.z1.mbs1.gbs12 --gpus 8xH100
    check mixtral-8x7b --plan tp2.ep4.dp4.z1.mbs1.gbs64 --gpus 8xH100
    check gpt2 --plan tp2.mbs8 --gpus 2xH100 --gbs 8
    check --plan small.plans#1
    check --plan dense.plans#3
    check --plan mixed.plans#1
    check --plan measured.plans
    check llama-3.1-8b --from megatron launch/train.sh --gpus 16xH100
    check llama-3.1-8b --from megatron launch.sh --gpus 16xH100
    check llama-3-8b --from megatron launch.sh --gpus 8xH100
    check llama-3.1-8b --from megatron misspelt.sh --gpus 8xH100
    check --from megatron launch.sh
    check llama-3.1-8b --plan tp2.mbs4.gbs64 --gpus 8xH100 --oom-log oom.log
    check llama-3.1-70b --plan tp8.pp4.mbs1.z1 --gpus 64xH100 --gbs 1024 --oom-log oom.log
    check gpt2-xl --plan dp8.mbs8.gbs64 --gpus 8xA100-40 --oom-log oom-old.log
""")

READ = _lines("""
    explain small.plans
    explain tp2 --model gpt2 --gpus 16xH100 --gbs 8
    explain dense.plans#2
    explain experts.plans#1
    explain mixed.plans#1
    explain regions.plans
    explain measured.plans
    compare small.plans#1 small.plans#3
    compare dense.plans#1 dense.plans#2 --timeline
    compare experts.plans#1 dense.plans#1
    compare mixed.plans#1 mixed.plans#2
    compare dense.plans#1 mixed.plans#1
    trace small.plans#1
    trace small.plans#2 -o step.json
    trace dense.plans#1
    trace mixed.plans#1 -o step.json
    trace measured.plans
    trace interleaved.plans -o step.json
    trace tp2.pp4.mbs1.gbs8.zb-h1 --model llama-3-8b --gpus 8xH100 -o step.json.gz
    trace pp4.vpp2.dp2.mbs1.gbs16.zb-v --model gpt2 --gpus 8xH100 -o step.json
    trace tp2.pp2.ep2.dp2.mbs1.gbs8 --model mixtral-8x7b --gpus 8xH100 -o step.json
    trace dp8.fsdp.mbs1.gbs32 --model llama-3-8b --gpus 8xH100
    export megatron.plans#1 --to megatron -o folder
    export experts.plans#1 --to megatron -o folder
    export small.plans#2 --to megatron -o folder
    export interleaved.plans --to megatron -o folder
    export piped.plans --to torch-csv -o folder
    export interleaved.plans --to torch-csv -o folder
    export mixed.plans#1 --to torch-csv -o folder
    export mixed.plans#1 --to megatron -o folder
    export measured.plans --to megatron -o folder
""")

SCHEDULE = (
    "schedule list",
    *_each("schedule * --p 4 --m 8", f"gpipe 1f1b varuna bamboo dynapipe dapple {ONE_CHUNK}"),
    *_each("schedule * --p 4 --m 8 --v 2 --tc 0.1 --tr 0.5", f"interleaved mobius {TWO_CHUNKS}"),
    *_lines("""
    schedule interleaved --p 4 --m 12 --v 3 --group 4
    schedule interleaved --p 3 --m 9 --v 2 --tf 1 --ti 1.2 --tw 0.8 --tc 0.1
    schedule seq1f1b --p 4 --m 6 --segments 4
    schedule avgpipe --p 4 --m 8 --extra 2
    schedule hanayo --p 4 --m 8 --waves 2
    schedule chimera --p 8 --m 8 --pairs 2
    schedule mixpipe --p 4 --m 8 --inject 3
    schedule v-half --p 6 --m 12 --raw
    schedule v-min --p 6 --m 12 --raw
    schedule breadth-first --p 4 --m 8 --v 2 --reverse
    schedule dapple --p 4 --m 8 --warmup pa
    schedule dapple --p 4 --m 8 --warmup pb
    schedule zb-auto --p 4 --m 9 --tf 1 --ti 1.1 --tw 0.7 --tc 0.05
    schedule varuna --p 4 --m 8 --tr 1
    schedule zb-h1 --p 8 --m 24 --tc 0.2
    schedule 1f1b --p 16 --m 64
    schedule 1f1b,zb-h1,zb-h2 --p 4 --m 8
    schedule zb-h2 --p 4 --m 8 --csv written.csv
    schedule interleaved --p 4 --m 8 --csv written.csv
    schedule --from order
    schedule --from order --tf 1 --ti 2 --tw 0.5
    schedule best --p 4 --m 8
    schedule best --p 2 --m 3 --no-split
    schedule best --p 4 --m 8 --room 3
    schedule best --p 4 --m 8 --allow 1f1b,zb-h1,zb-h2 --tc 0.1
    schedule best --m 8 --times stages.csv
    schedule best --m 6 --times stages.json
    """),
)

SIZE_AND_TUNE = _lines("""
    size gpt2 --device H100 --gbs 8 --step-time 1
    size llama-3-8b --device A100-80 --step-time 10
    size llama-3-8b --device H100 --tokens 1T --max-price 400000 --price 2.5 --gbs 256
    size gpt2-xl --device L40S --step-time 5 --gbs 64 --pin tp=1 --forbid fsdp
    tune gpt2 --gpus 2xH100 --gbs 8 --trials 12
    tune gpt2 --gpus 4xH100 --gbs 16 --trials 12 --seed 7 --forbid cp
    tune gpt2 --gpus 2xH100 --gbs 8 --trials 8 --with random --compare --repeats 2
    tune gpt2 --gpus 2xH100 --gbs 8 --trials 8 --no-optimum --pin tp=1
""")

SIZE_AND_TUNE_SLOW = _lines("""
    size llama-3.1-70b --device H100 --tokens 1T --days 30
    tune llama-3-8b --gpus 8xH100 --gbs 64 --with optuna --trials 20
""")

CALCULON = _lines("""
    calculon estimate gpt3-175B execution.json a100_80g
    calculon estimate gpt3-175B execution.json a100_80g --layers
    calculon estimate gpt3-175B execution.json a100_80e --fixed
    calculon estimate gpt3-175B sharded.json h100_80g_nvl8
    calculon estimate megatron-22B offloaded.json a100_80e
    calculon estimate gpt3-13B execution.json a100_80g
    calculon estimate gpt3-175B too-large.json a100_80g
    calculon estimate --batch rows.jsonl
    calculon search gpt3-13B a100_80g --procs 8 --batch 8 --top 2 --pin tensor_par=2,4
    calculon search little.json a100_80g --procs 16 --batch 16 --no-tp-overlap --no-dp-overlap --top 3
    calculon search little.json h100_80g_nvl8 --procs 8 --batch 8 --space full --top 2
    calculon search little.json a100_80e --procs 8 --batch 8 --fixed --stop-microbatch --top 2
    calculon search gpt3-175B a100_80g --procs 64 --batch 64 --pin tensor_par=8 --top 1
    calculon what-if gpt3-13B a100_80g --procs 8 --batch 8 --pin tensor_par=2,4
    calculon what-if little.json a100_80g --procs 8 --batch 8 --factors 0.9,1.1 --pin pipeline_par=2
    calculon tune gpt3-13B a100_80g --procs 4 --batch 4 --pin tensor_par=2,4 --trials 10
    calculon tune gpt3-13B a100_80g --procs 4 --batch 4 --pin tensor_par=2,4 --trials 6 --no-optimum --seed 3
    calculon sweep little.json,gpt3-13B a100_80g --procs 4,8 --batch 8 --pin tp=2 -o sweep.parquet
    calculon sweep little.json a100_80g,h100_80g_nvl8 --procs 4 --batch 4,8 --all --pin tp=2 -o sweep.parquet
    sweep chips.toml -o chips.parquet --top 2
    sweep stated.toml -o stated.parquet
""")

LIBRARY = (
    "models list",
    "gpus list",
    *_each(
        "models show *",
        """gpt2 llama-3.1-70b mixtral-8x7b deepseek-v3 deepseek-v2-lite gemma-2-9b gemma-3-27b gpt-oss-120b
        llama-4-maverick falcon-180b bloom-176b gpt-neox-20b kimi-k2 mistral-7b palm-540b config.json experts.json""",
    ),
    *_each("gpus show *", "H100 A100-80 V100-32 L40S GB200 MI300X TPU-v5p Trainium2 Ascend-910B Gaudi3"),
    *_each(
        "clusters show *",
        """64xH100 64xH100,8xA100-80 144xGB200 8x8xH100 regions.toml linked.toml one-kind.toml bandwidth.csv gpus.csv
        nodes.csv nodes.json scontrol.txt sinfo.txt topo-cube-mesh.txt topo-h100.txt topo-two-nodes.txt""",
    ),
    *_lines("""
    clusters show 64xH100,64xH800,8xV100 --tolerance 1.5
    clusters show bandwidth.csv --tolerance 0
    MESHWRIGHT_LIBRARY=library gpus show mine
    MESHWRIGHT_LIBRARY=library estimate llama-3-8b --plan tp4.dp2.z1.mbs1.gbs16 --gpus 8xmine
    MESHWRIGHT_LIBRARY=shelf models show toy-llama
    MESHWRIGHT_LIBRARY=shelf plan toy-llama --gpus 4xA100-40 --gbs 32
    gpus add mine.toml --library own
    models add config.json --name tiny --library own
    doctor
    """),
)

MEASURED = _lines("""
    validate measured_sample.csv -o predictions.csv
    validate measured_sample.csv --fail-above 0.01
    calibrate --from-log steps.csv --model llama-3.1-8b --plan tp2.mbs1.gbs128 --gpus 8xH100 -o run.json
    calibrate --from-log train.log --model llama-3.1-8b --plan tp2.mbs1.gbs128 --gpus 8xH100
    validate runs.csv
    calibrate measured_sample.csv
""")

MEASURED_SLOW = _lines("""
    calibrate runs.csv -o numbers.json
    run gpt-tiny --plan pp2.dp2.mbs2.z1 --steps 2 --devices 4 --layers 2 --dtype fp64
    run moe-tiny --plan ep2.dp2.mbs2 --steps 2 --devices 2 --layers 2 --dtype fp64
    verify mlp-tiny --plan pp2.dp2.mbs1 --steps 2 --devices 4 --dtype fp64
""")

BAD = _lines("""
    paln
    plan
    plan llama-3-8b --gpu 8xH100
    plan llama-3-8b surplus --gpus 8xH100
    plan llama-3-8bb --gpus 8xH100
    plan llama-3-8b --gpus 8xH1000
    plan llama-3-8b --gpus 8x8x8xH100
    plan llama-3-8b --gpus 8xH100 --dtype bf17
    plan llama-3-8b --gpus 8xH100 --optimizer adamm
    plan llama-3-8b --gpus 8xH100 --objective spead
    plan llama-3-8b --gpus 8xH100 --schedule zb-h9
    plan llama-3-8b --gpus 8xH100 --methods shcedule,dispatcher
    plan llama-3-8b --gpus 8xH100 --target megatrn
    plan llama-3-8b --gpus 8xH100 --pin tpp=8 --forbid nothing
    plan llama-3-8b --gpus 8xH100 --pin tp=3
    plan llama-3-8b --gpus 8xH100 --seq 0 --gbs -1 --top x
    plan llama-3-8b --gpus 8xH100 --gbs 8 --tokens-per-step 4096
    plan llama-3-8b --gpus 8xH100 --days 30
    plan llama-3-8b --gpus 8xH100 --max-price-per-step 1
    plan llama-3-8b --gpus 8xH100 --max-step-time 1ms
    plan llama-3.1-8b --gpus 1xT4 --dtype fp16 --gbs 8
    plan llama-3-8b --gpus 8xH100 --profiles nowhere --gbs 8
    plan tinny --cluster alpha-beta.toml --profiles profiles --gbs 8
    plan llama-3-8b --cluster misspelt.toml
    plan llama-3-8b --cluster broken.toml
    plan broken.json --gpus 8xH100
    plan wrong.json --gpus 8xH100
    plan nowhere.json --gpus 8xH100
    plan --lost 8xH100
    plan --replan-from small.plans#9 --lost 2
    plan --replan-from small.plans#1 --lost 2
    plan tiny --cluster alpha-beta.toml --profiles profiles --gbs 48 --max-price-per-step 0.001
    estimate llama-3-8b --gpus 8xH100 --plan tp3
    estimate llama-3-8b --gpus 8xH100 --plan tp8.pp4
    estimate llama-3-8b --gpus 8xH100 --plan tp8.tp4.zz9
    estimate llama-3-8b --gpus 8xH100 --plan tp2.pp4.mbs1.gbs16.varuna
    estimate llama-3-8b --gpus 8xH100 --plan other-version.json
    estimate --plan measured.plans
    check llama-3-8b --gpus 8xH100 --from megatrn launch.sh
    check llama-3-8b --gpus 8xH100 --plan tp2 --oom-log columns.csv
    explain tp8.pp4
    compare small.plans#1 measured.plans
    trace tp2
    export small.plans#1 --to megatrn -o folder
    size llama-3-8b --device H100 --days 3
    size llama-3.1-405b --device H100 --step-time 0.0001
    schedule 1f1bb --p 4 --m 8
    schedule zb-h2,dualpipe --p 4 --m 3 --waves 2
    schedule interleaved --p 4 --m 9 --v 2
    schedule best --p 4 --m 8 --room 0.5
    models show lama-3-8b
    gpus show H1000
    gpus add odd-gpu.toml --library own
    models add wrong.json --library own
    clusters show nowhere.json
    validate columns.csv
    calibrate nowhere.csv
    tune gpt --gpus 8xH10 --with optima --no-optimum
    calculon estimate gpt-175 execution.json a100_80
    calculon search little.json a100_80g --procs 0 --batch x --space ful
    sweep broken.toml -o s.parquet
    sweep mine.toml -o s.parquet
    calculon search little.json a100_80g --procs 8 --batch 8 --dtype float8
    run gpt-tiny --plan tp3.dp3
""")

ADAPTERS = _lines("""
    plan llama-3.1-8b --gpus 1xRTX4090 --lora r=16 --top 2
    plan llama-3-8b --gpus 1xRTX4090 --lora r=16,base=nf4 --seq 2048 --top 1
    plan mistral-7b --gpus 2xRTX4090 --lora r=16,dora --gbs 32 --top 2
    plan llama-3.1-70b --gpus 1xRTX4090 --lora r=16
    estimate llama-3.1-8b --gpus 1xRTX4090 --lora r=16 --plan dp1.mbs1.gbs16.rc-full
    estimate mistral-7b --gpus 1xRTX4090 --lora r=16,base=nf4 --plan dp1.mbs1.gbs16.rc-full --target llamafactory
    estimate llama-3.1-8b --gpus 8xA100-40 --lora r=16 --plan tp2.dp4.z1.mbs1.gbs32
    estimate llama-3.1-8b --gpus 8xA100-40 --lora r=16 --plan pp2.dp4.mbs1.gbs32 --target accelerate
    estimate t5-base --gpus 8xA100-40 --lora r=8 --plan dp8.z1.mbs1.gbs32
    check llama-3.1-8b --gpus 8xA100-40 --lora r=16,dora --plan dp8.fsdp.mbs1.gbs32
    compare dp8.fsdp.mbs1.gbs32 pp2.dp4.mbs1.gbs32 --model llama-3.1-8b --gpus 8xA100-40 --lora r=16
    size llama-3.1-8b --device RTX4090 --lora r=16 --tokens 1B --days 7
""")

ADAPTERS_SLOW = _lines("""
    plan llava-1.5-7b --gpus 8xA100-40 --lora r=16 --gbs 64 --top 1
    plan llama-3.1-8b --gpus 8xA100-40 --lora r=16,base=nf4 --gbs 64 --top 2
    plan llama-3.1-70b --gpus 8xH100 --lora r=16 --gbs 64 --top 2
    plan llama-3.1-70b --gpus 8xH100 --lora r=16,base=nf4 --gbs 64 --top 1
    plan mixtral-8x7b --gpus 16xH100 --lora r=16 --gbs 64 --top 2
    plan llama-3.1-70b --gpus 16xH100 --lora r=16,dora --gbs 64 --top 1
    plan llama-3.1-8b --gpus 4xRTX4090,4xA100-40 --lora r=16 --top 1
    size llama-3.1-70b --device H100 --lora r=16 --tokens 1B --days 2 --price 2
    tune llama-3.1-8b --gpus 8xA100-40 --lora r=16 --trials 30
""")

QUICK = frozenset(
    (
        *(*PLAN, *MIXED, *ESTIMATE, *CHECK, *READ, *SCHEDULE, *SIZE_AND_TUNE, *CALCULON, *LIBRARY, *MEASURED, *BAD),
        *ADAPTERS,
    )
)
"""Those that `make test` asks, too."""

QUESTIONS = (
    *(*PLAN, *PLAN_SLOW, *MIXED, *MIXED_SLOW, *ESTIMATE, *CHECK, *READ, *SCHEDULE, *SIZE_AND_TUNE, *SIZE_AND_TUNE_SLOW),
    *(*CALCULON, *LIBRARY, *MEASURED, *MEASURED_SLOW, *BAD, *ADAPTERS, *ADAPTERS_SLOW),
)
