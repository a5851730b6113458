"""Claims of tensor, sequence and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.claims.claim import Answer, Claim, estimate_of, gain, memory_gib, mfu, step_s

MODELS = "benchmarks/claims/models"
KORTHIKANTI = "--attention-kernel materialised --software megatron-lm"


def tensors() -> Iterator[Claim]:
    """One to three dimensions."""
    yield Claim(
        system="Megatron 1D",
        says="8.3B on 512 V100 sustains 15.1 PFLOP/s, 76% of linear",
        published=15.1,
        unit="PFLOP/s",
        setting="GPT-2 8.3B, tensor degree 8; here the 7.5B of Megatron, batch 512",
        source="Shoeybi et al., 2019",
        known="R",
        commands=(
            "estimate megatron-7.5b --gpus 512xV100-32 --seq 1024 --dtype fp16 "
            "--plan tp8.nosp.dp64.mbs8.gbs512.rc-full --attention-kernel materialised --software megatron-lm",
        ),
        ours=lambda found: 512 * 125e-3 * float(estimate_of(found)["hfu"]),
        why="ours is quicker: it hides gradients behind the backward pass, and its products are those of later "
        "libraries",
    )
    yield Claim(
        system="Megatron sequence parallelism",
        says="five times less memory for activations",
        published=5.0,
        unit="x",
        setting="GPT-3 175B on 64 A100, selective recomputation",
        source="Korthikanti et al., MLSys 2023",
        known="P",
        commands=tuple(
            f"estimate gpt3-175b --gpus 64xA100-80 --seq 2048 --gbs 64 {KORTHIKANTI} --plan {plan}"
            for plan in ("tp8.nosp.pp8.vpp3.dp1.mbs1", "tp8.pp8.vpp3.dp1.mbs1.rc-sel")
        ),
        ours=lambda before, after: memory_gib(["activations"])(before) / memory_gib(["activations"])(after),
    )
    yield Claim(
        system="Selective recomputation",
        says="takes back over 90% of what full recomputation costs in time",
        published=90,
        unit="%",
        setting="GPT-3 175B on 64 A100: time over a step without recomputation",
        source="Korthikanti et al., MLSys 2023",
        known="P",
        commands=tuple(
            f"estimate gpt3-175b --gpus 64xA100-80 --seq 2048 --gbs 64 {KORTHIKANTI} --plan {plan}"
            for plan in (
                "tp8.nosp.pp8.vpp3.dp1.mbs1",
                "tp8.nosp.pp8.vpp3.dp1.mbs1.rc-full",
                "tp8.pp8.vpp3.dp1.mbs1.rc-sel",
            )
        ),
        ours=lambda none, full, some: 100 * (1 - (step_s(some) - step_s(none)) / (step_s(full) - step_s(none))),
        rule="least",
    )
    grid = f"estimate {MODELS}/gpt-64-heads.json --gpus 16x4xV100-16 --seq 512 --gbs 64 --dtype fp16 --plan"
    for system, published, before, after, source, known in (
        ("Optimus 2D", 1.48, "tp64.nosp.dp1.mbs64", "tp2d8.dp1.mbs64", "Xu et al., IPDPS 2023", "R"),
        ("Tesseract 2.5D", 1.38, "tp64.nosp.dp1.mbs64", "tp25d4x4.dp1.mbs64", "Wang et al., ICPP 2022", "P"),
        ("Tesseract 2.5D", 1.53, "tp2d8.dp1.mbs64", "tp25d4x4.dp1.mbs64", "Wang et al., ICPP 2022", "P"),
        ("Colossal-AI 3D", 2.32, "tp64.nosp.dp1.mbs64", "tp3d4.dp1.mbs64", "arXiv 2105.14450", "P"),
        ("Colossal-AI 3D", 1.57, "tp2d8.dp1.mbs64", "tp3d4.dp1.mbs64", "arXiv 2105.14450", "P"),
    ):
        yield Claim(
            system=system,
            says=f"{published} times the throughput of {'2D' if '2d8' in before else '1D'} on 64 GPUs",
            published=published,
            unit="x",
            setting="widths of 2,048 to 8,192 on V100; here 24 layers of width 4,096, 64 sequences of 512 in "
            "nodes of four "
            "V100",
            source=source,
            known=known,
            commands=(f"{grid} {before}", f"{grid} {after}"),
            ours=gain,
            why="the depths of 2.5D add an all-reduce of weight gradients, which the paper's table leaves out"
            if system.startswith("Tesseract") and before.startswith("tp2d")
            else "links and widths of the paper's machine are not known to the row; 1D all-reduces over all nodes here",
        )
    yield Claim(
        system="Ulysses",
        says="2.5 times as fast as Megatron's sequence parallelism",
        published=2.5,
        unit="x",
        setting="GPT 7B on 32 A100-40; here Llama-2 7B, 65,536 tokens, over four nodes",
        source="Jacobs et al., 2023",
        known="R",
        commands=(
            "estimate llama-2-7b --gpus 32xA100-40 --seq 65536 --gbs 8 --plan tp32.dp1.mbs1.rc-full",
            "estimate llama-2-7b --gpus 32xA100-40 --seq 65536 --gbs 8 --plan cp32-a2a.dp1.fsdp.mbs1.rc-full",
        ),
        ours=gain,
        why="attention is most of both steps here; which kernels and lengths the paper's 2.5 is of is in none "
        "of our sources",
    )
    yield Claim(
        system="Ring attention",
        says="the context grows with the devices: twice as many hold twice the tokens",
        published=1.0,
        unit="x",
        setting="here Llama-2 7B, memory of 16 devices and twice the tokens over that of 8",
        source="Liu et al., ICLR 2024",
        known="R",
        commands=(
            "estimate llama-2-7b --gpus 8xA100-80 --seq 131072 --gbs 1 --plan cp8.dp1.fsdp.mbs1.rc-full",
            "estimate llama-2-7b --gpus 16xA100-80 --seq 262144 --gbs 1 --plan cp16.dp1.fsdp.mbs1.rc-full",
        ),
        ours=lambda before, after: _activations(after) / _activations(before),
    )
    yield Claim(
        system="Megatron context parallelism",
        says="tensor and context parallelism beat full recomputation",
        published=1.0,
        unit="x",
        setting="GPT 175B with long sequences; here Llama-2 70B, 32,768 tokens, 64 sequences on 256 A100",
        source="Megatron-Core documentation",
        known="C",
        commands=tuple(
            f"estimate llama-2-70b --gpus 256xA100-80 --seq 32768 --gbs 64 --plan {plan}"
            for plan in ("tp8.pp8.dp4.z1.mbs1.rc-full", "tp8.cp4.pp8.dp1.z1.mbs1")
        ),
        ours=gain,
        rule="least",
        tolerance=0.0,
    )


def _activations(found: Answer) -> float:
    return memory_gib(["activations"])(found)


def experts() -> Iterator[Claim]:
    """Mixtures of experts."""
    yield Claim(
        system="GShard",
        says="600B on 2,048 TPU v3 in four days",
        published=4.0,
        unit="days",
        setting="1e12 tokens, 36 layers of 2,048 experts",
        source="Lepikhin et al., ICLR 2021",
        known="P",
        why="the model's shape is not among those known by name, and TPU v3 cores were never fitted with experts",
    )
    shadow = "estimate deepseek-v2-lite --gpus 4x8xA100-80 --seq 4096 --gbs 128 --expert-load zipf:1.2 --plan"
    yield Claim(
        system="FasterMoE",
        says="two shadowed experts take 35.81 ms of a layer, none 114.66, three 39.38",
        published=114.66 / 35.81,
        unit="x",
        setting="width 2,048, alpha 2, 6.25 GB/s, 11.5 TFLOP/s, tokens 8192, 4096, 1024, 512",
        source="laekov/fastmoe, shadow policy",
        known="C",
        ours=lambda: shadowed_s(0) / shadowed_s(2),
        tolerance=0.001,
    )
    yield Claim(
        system="FasterMoE",
        says="up to 17.87 times as fast as ZeRO data parallelism",
        published=17.87,
        unit="x",
        setting="MoE-GPT on 64 V100; here DeepSeek-V2-Lite with skewed experts on 8 p3dn.24xlarge, over FSDP "
        "that gathers "
        "every expert",
        source="He et al., PPoPP 2022",
        known="P",
        commands=tuple(
            "estimate deepseek-v2-lite --gpus 8xp3dn.24xlarge --seq 1024 --gbs 512 --dtype fp16 --expert-load zipf:1.2 "
            f"--plan {plan}"
            for plan in ("fsdp.dp64.mbs1", "ep64.dp64.z1.mbs1.epshadow8")
        ),
        ours=gain,
        why="widths, batch and links of the paper's best case are in none of our sources",
    )
    yield Claim(
        system="FasterMoE",
        says="shadowing is up to 2.19 times as fast as expert parallelism as it is",
        published=2.19,
        unit="x",
        setting="time to convergence over GShard and BASE; here the step on skewed experts",
        source="He et al., PPoPP 2022",
        known="P",
        commands=(f"{shadow} ep32.dp32.z1.mbs1", f"{shadow} ep32.dp32.z1.mbs1.epshadow4"),
        ours=gain,
        rule="least",
    )
    yield Claim(
        system="SmartMoE",
        says="up to 1.88 times as fast as FasterMoE",
        published=1.88,
        unit="x",
        setting="up to 64 GPUs; here DeepSeek-V2-Lite with Zipf 0.6 on 32 A100-80, placed over as they come",
        source="Zhai et al., ATC 2023",
        known="P",
        commands=tuple(
            "estimate deepseek-v2-lite --gpus 4x8xA100-80 --seq 4096 --gbs 128 --expert-load zipf:0.6 --plan "
            f"ep8.dp32.z1.mbs1{how}"
            for how in ("", ".epbal")
        ),
        ours=gain,
        why="only the placement is in this row; the paper adds a search of degrees, which its baseline lacks",
    )
    yield Claim(
        system="DeepSpeed-TED",
        says="26% more speed from dropped duplicates and kept exchanges",
        published=1.26,
        unit="x",
        setting="40B (6.7B, 16 experts) on 128 V100; here DeepSeek-MoE 16B on 128 V100, full recomputation",
        source="Singh et al., ICS 2023",
        known="P",
        commands=tuple(
            f"estimate deepseek-moe-16b --gpus 128xV100-32 --seq 2048 --gbs 128 --dtype fp16 --plan tp4{how}"
            for how in (".ep32.dp32.z1.mbs1.rc-full", ".nosp.epdtd.ep32.dp32.z1.mbs1.rc-full.epstash")
        ),
        ours=gain,
        why="tensor ranks that send every token several times are refused here, so that the base is already without "
        "duplicates",
    )
    yield Claim(
        system="DeepSpeed-MoE",
        says="a fifth of the cost of training to a dense model's quality",
        published=5.0,
        unit="x",
        setting="1.3B with 128 experts against 6.7B dense, 128 A100; here the FLOP of 1.3B and 6.7B at equal tokens",
        source="Rajbhandari et al., ICML 2022",
        known="P",
        commands=tuple(
            f"estimate {model} --gpus 128xA100-80 --seq 2048 --gbs 512 --plan tp2.dp64.z1.mbs4"
            for model in ("gpt3-6.7b", "gpt3-1.3b")
        ),
        ours=gain,
        why="that equal quality is reached is the paper's experiment; this row has the speed of the dense part alone, "
        "without exchanges",
    )
    lina = "estimate deepseek-moe-16b --gpus 16xA100-80 --seq 2048 --gbs 64 --expert-load zipf:0.6 --plan"
    yield Claim(
        system="Lina",
        says="up to 1.73 times as fast a step",
        published=1.73,
        unit="x",
        setting="Transformer-XL, BERT, GPT-2 with 16 experts on 16 A100; here DeepSeek-MoE 16B, experts placed by load",
        source="Li et al., ATC 2023",
        known="P",
        commands=(f"{lina} ep16.dp16.z1.mbs1.rc-full", f"{lina} ep16.dp16.z1.mbs1.rc-full.epbal.epfirst"),
        ours=gain,
        why="their gradients meet exchanges in every step of one micro-batch; here four follow each other",
    )
    yield Claim(
        system="Janus",
        says="up to 2.06 times as fast where experts move instead of tokens",
        published=2.06,
        unit="x",
        setting="MoE-BERT, GPT, Transformer-XL on 32 A100; here DeepSeek-V2-Lite with 16,384 tokens",
        source="Liu et al., SIGCOMM 2023",
        known="P",
        commands=tuple(
            f"estimate deepseek-v2-lite --gpus 4x8xA100-80 --seq 16384 --gbs 128 --plan ep32.dp32.z1.mbs1.rc-full{how}"
            for how in ("", ".epmove")
        ),
        ours=gain,
        why="its gain is the largest over models; a cache per node, which saves the second gather, is not priced",
    )
    for model, published, plan, gpus in (
        ("mixtral-8x22b", 49.3, "tp2.ep8.pp8.vpp7.dp8.z1.mbs1", 128),
        ("qwen2-57b-a14b", 39.0, "tp2.ep4.pp4.vpp7.dp8.z1.mbs1", 64),
    ):
        yield Claim(
            system="MoE parallel folding",
            says=f"{published}% MFU for {model}",
            published=published,
            unit="% MFU",
            setting=f"{gpus} H100, 4,096 tokens, bf16",
            source="arXiv 2504.14960",
            known="P",
            commands=(f"estimate {model} --gpus {gpus}xH100 --seq 4096 --gbs 256 --plan {plan}",),
            ours=mfu,
        )

    yield Claim(
        system="Tutel",
        says="up to 5.75 times the speed of one layer of experts on 2,048 A100, 4.96 on 16",
        published=4.96,
        unit="x",
        setting="a layer alone; here a step of DeepSeek-MoE 16B on 128 A100, exchanges in two levels and two chunks",
        source="Hwang et al., MLSys 2023",
        known="R",
        commands=tuple(
            f"estimate deepseek-moe-16b --gpus 128xA100-80 --seq 2048 --gbs 512 --plan ep64.dp128.z1.mbs4{how}"
            for how in ("", ".epc2.ep2h")
        ),
        ours=gain,
        why="the paper's base is Fairseq, whose one-hot dispatch is not priced; the layer is half of the step here",
    )
    for nodes, published in ((1, 153), (4, 58), (8, 51)):
        yield Claim(
            system="DeepEP",
            says=f"dispatches at {published} GB/s over {8 * nodes} ranks",
            published=published,
            unit="GB/s",
            setting="H800, 4,096 tokens of width 7,168 to 8 experts on at most 4 nodes",
            source="deepseek-ai/DeepEP, README of February 2025",
            known="C",
            ours=lambda nodes=nodes: dispatched_gb_s(nodes),
            tolerance=0.15,
        )


def shadowed_s(copies: int) -> float:
    """Seconds of FasterMoE's layer with copies of the hottest experts: 3 products, 4 exchanges, a broadcast each."""
    from meshwright.kernels.expert_load import counted_shares, rank_shares

    hidden, alpha, element, bandwidth, flops = 2048, 2, 4, 6.25e9, 11.5e12
    tokens = (8192.0, 4096.0, 1024.0, 512.0)
    fullest = rank_shares(counted_shares((tokens,)), 4, shadowed=copies)[0].max() * sum(tokens)
    products = 3 * 4 * alpha * hidden**2 * fullest / flops
    sent = 4 * hidden * element * fullest / bandwidth
    return float(products + sent + copies * 2 * alpha * hidden**2 * element / bandwidth)


def claims() -> Iterator[Claim]:
    """All of them."""
    yield from tensors()
    yield from experts()


def dispatched_gb_s(nodes: int) -> float:
    """GB/s of what a dispatch carries: within a node all of it, between nodes what enters one of them.

    Args:
        nodes: of eight H800, 160 GB/s inside and 46 between them.
    """
    from meshwright.kernels.exchange import Routing, token_exchange_s
    from meshwright.kernels.lines import LevelRates

    routing = Routing(copies=8, groups=nodes if nodes > 1 else 0, chosen=min(4, nodes) if nodes > 1 else 0)
    token = 7168 * (1 + 4 / 128)
    inside, between = (
        LevelRates(bandwidth_bytes_per_s=gb_s * 1e9, efficiency=1.0, latency_s=0.0, base_latency_s=0.0)
        for gb_s in (160, 46)
    )
    found = token_exchange_s(4096 * 8 * token, inside=(8.0, float(8 * nodes)), rates=(inside, between), routing=routing)
    return 4096 * token * float(routing.entered(8 if nodes == 1 else nodes)) / float(found) / 1e9
