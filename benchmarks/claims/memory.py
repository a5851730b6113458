"""Claims of sharded states, offload and recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.claims.claim import Claim, estimate_of, fits, gain, memory_gib, rate, states_gib

GIB_OF_GB = 1e9 / 2**30


def sharded() -> Iterator[Claim]:
    """ZeRO and its kin."""
    recipe = "--dtype fp16 --grad-dtype fp16"
    for stage, gigabytes, token in (("0", 120.0, ""), ("1", 31.4, ".z1"), ("2", 16.6, ".z2"), ("3", 1.9, ".z3")):
        yield Claim(
            system=f"ZeRO-{stage}" if stage != "0" else "Data parallelism",
            says=f"7.5B over 64 devices: {gigabytes:g} GB of weights, gradients and Adam on each",
            published=gigabytes * GIB_OF_GB,
            unit="GiB",
            setting="16-bit gradients; 16 bytes a parameter",
            source="Rajbhandari et al., SC 2020, figure 1",
            known="R",
            commands=(
                f"estimate megatron-7.5b --gpus 64xV100-32 --seq 1024 {recipe} --plan dp64{token}.mbs1.gbs64.rc-full",
            ),
            ours=states_gib,
        )
    yield Claim(
        system="FSDP",
        says="GPT-175B reaches 173 to 186 TFLOP/s per GPU on 128 to 512 A100",
        published=186,
        unit="TFLOP/s",
        setting="here 128 A100-80, batch 2 a device, 2,048 tokens, full recomputation counted",
        source="Zhao et al., VLDB 2023",
        known="R",
        commands=("estimate gpt3-175b --gpus 128xA100-80 --seq 2048 --gbs 256 --plan fsdp.dp128.mbs2.rc-full",),
        ours=lambda found: 312 * float(estimate_of(found)["hfu"]),
    )
    yield Claim(
        system="DDP",
        says="scales near-linearly to 256 GPUs",
        published=100,
        unit="%",
        setting="ResNet-50 and BERT on V100; here BERT-large, rate on 256 A100 over that on 8",
        source="Li et al., VLDB 2020",
        known="R",
        commands=tuple(
            f"estimate bert-large --gpus {gpus}xA100-40 --seq 512 --gbs {16 * gpus} --plan dp{gpus}.mbs16"
            for gpus in (8, 256)
        ),
        ours=lambda few, many: 100 * rate(many) / rate(few),
    )
    mics = "--seq 512 --gbs 4096 --dtype fp16"
    yield Claim(
        system="MiCS",
        says="up to 2.89 times DeepSpeed ZeRO-3",
        published=2.89,
        unit="x",
        setting="10B on 128 V100 over 100 Gbit/s; here 7.5B on 16 p3dn.24xlarge, groups of a node over FSDP",
        source="Zhang et al., VLDB 2022",
        known="P",
        commands=tuple(
            f"estimate megatron-7.5b --gpus 16xp3dn.24xlarge {mics} --plan {how}.dp128.mbs8.rc-full"
            for how in ("fsdp", "hsdp8")
        ),
        ours=gain,
        why="how much of its gathers the baseline hid is in none of our sources; here both hide what "
        "computation covers",
    )
    yield Claim(
        system="MiCS",
        says="99.4% of linear on 512 devices",
        published=99.4,
        unit="%",
        setting="100B on A100 over 400 Gbit/s; here 7.5B in groups of eight, 512 over 64",
        source="Zhang et al., VLDB 2022",
        known="P",
        commands=tuple(
            f"estimate megatron-7.5b --gpus {gpus}xA100-40 --seq 512 --gbs {32 * gpus} --plan "
            f"hsdp8.dp{gpus}.mbs8.rc-full"
            for gpus in (64, 512)
        ),
        ours=lambda few, many: 100 * rate(many) / rate(few),
    )
    yield Claim(
        system="ZeRO++",
        says="up to 2.16 times ZeRO-3 on 384 GPUs",
        published=2.16,
        unit="x",
        setting="GPT 18B on V100, 100 Gbit/s a node; here 32 p3dn.24xlarge, 8-bit gathers, 4-bit gradients, "
        "groups of a "
        "node",
        source="Wang et al., ICLR 2024",
        known="R",
        commands=(
            "estimate megatron-18b --gpus 32xp3dn.24xlarge --seq 1024 --gbs 256 --dtype fp16 --plan "
            "fsdp.dp256.mbs1.rc-full",
            "estimate megatron-18b --gpus 32xp3dn.24xlarge --seq 1024 --gbs 256 --dtype fp16 --reduce-dtype int4 "
            "--gather-dtype int8 --plan fsdp.dp256.mbs1.rc-full",
        ),
        ours=gain,
    )


def offloaded() -> Iterator[Claim]:
    """States and stages in host memory."""
    yield Claim(
        system="ZeRO-Offload",
        says="13B trains on one V100-32",
        published=1,
        unit="fits",
        setting="a host of 1.5 TB",
        source="Ren et al., ATC 2021",
        known="R",
        commands=("plan gpt3-13b --gpus 1xV100-32 --seq 1024 --offload optimizer --host-ram 1.5TB",),
        ours=fits,
        tolerance=0.0,
    )
    yield Claim(
        system="ZeRO-Offload",
        says="10B on one V100 at 40 TFLOP/s",
        published=40,
        unit="TFLOP/s",
        setting="batch 512 by accumulation, 1,024 tokens; here 7.5B, recomputation counted",
        source="Ren et al., ATC 2021",
        known="R",
        commands=("plan megatron-7.5b --gpus 1xV100-32 --seq 1024 --gbs 512 --offload optimizer --host-ram 1.5TB",),
        ours=lambda found: 125 * float(estimate_of(found)["hfu"]),
        why="ours takes the kernels of this page's other V100 rows, at 60% of the peak; the host's Adam hides "
        "behind 512 "
        "sequences in both",
    )
    yield Claim(
        system="ZeRO-Infinity",
        says="a trillion parameters train on one DGX-2 of 16 V100",
        published=1,
        unit="fits",
        setting="weights, states and activations on NVMe of 28 TB",
        source="Rajbhandari et al., SC 2021",
        known="R",
        commands=(
            "plan megatron-1t --gpus 1x16xV100-SXM3-32 --seq 1024 --gbs 16 --offload "
            "weights,optimizer,activations,nvme "
            "--host-ram 1.5TB --nvme 28TB@25GB/s --pin tp=1 --pin pp=1",
        ),
        ours=fits,
        tolerance=0.0,
        why="a layer of it is 15.7 GB of weights beside its gradients, which ZeRO-Infinity cuts into tiles; tiles of a "
        "product are not priced",
    )
    yield Claim(
        system="Mobius",
        says="3.8 to 5.1 times as fast as ZeRO-3 with offload",
        published=3.8,
        unit="x",
        setting="3B to 51B on servers of 4 to 8 RTX 3090 under two root complexes",
        source="Feng et al., ASPLOS 2023",
        known="P",
        commands=tuple(
            "estimate megatron-7.5b --gpus 4xRTX-3090 --seq 512 --gbs 16 --host-ram 1TB "
            f"--plan {plan}.mbs1.rc-full.off-wog"
            for plan in ("fsdp.dp4", "mobius.pp4.vpp9.dp1")
        ),
        ours=gain,
        rule="least",
        why="half of both steps is the update on the host, of which the paper says nothing; weights come once for all "
        "micro-batches of a stage, not once for each on every device",
    )


def recomputed() -> Iterator[Claim]:
    """Activations made again."""
    yield Claim(
        system="Full recomputation",
        says="keeps the layers' inputs alone: 48 of 2,736 MiB a layer of GPT-3",
        published=2736 / 48,
        unit="x",
        setting="2,048 tokens, no tensor parallelism, attention scores written; one stage in flight and one layer live",
        source="Korthikanti et al., MLSys 2023",
        known="P",
        commands=tuple(
            "estimate gpt3-175b --gpus 96xA100-80 --seq 2048 --gbs 1 --attention-kernel materialised --plan "
            f"pp96.dp1.mbs1{how}"
            for how in ("", ".rc-full")
        ),
        ours=lambda none, full: memory_gib(["activations"])(none) / memory_gib(["activations"])(full),
        why="",
    )
    yield Claim(
        system="Checkmate",
        says="up to 5.1 times larger inputs in the same memory",
        published=5.1,
        unit="x",
        setting="VGG, MobileNet, U-Net on a V100-16",
        source="Jain et al., MLSys 2020",
        known="R",
        why="convolutional networks are not among the models",
    )
    yield Claim(
        system="Activation offload",
        says="hidden where bytes over bandwidth are no more than a forward",
        published=0,
        unit="s exposed",
        setting="Llama-3 8B on 8 H100, 8,192 tokens, the inputs of layers alone; host transfers that are left "
        "in a step",
        source="Qi et al., PipeOffload, 2025",
        known="C",
        commands=(
            "estimate llama-3-8b --gpus 8xH100 --seq 8192 --gbs 64 --plan fsdp.dp8.mbs1.rc-full.off-a --host-ram 2TB",
        ),
        ours=lambda found: round(float(estimate_of(found)["breakdown_s"]["offload"]), 2),
        rule="most",
        tolerance=0.0,
    )


def claims() -> Iterator[Claim]:
    """All of them."""
    yield from sharded()
    yield from offloaded()
    yield from recomputed()
