"""Claims of pipeline schedules and of what runs them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.claims.claim import Answer, Claim, estimate_of, fits, gain, makespan, mfu, peak, step_s

MODELS = "benchmarks/claims/models"
A100_PEAK = 312e12
"""FLOP/s, 16 bits, dense."""


def bubble(found: Answer) -> float:
    """Idle share of the makespan in percent."""
    return 100 * float(found["bubble_makespan"])


def span_s(found: Answer) -> float:
    """From the first start to the last end of the worker that spans longest: what a step takes among others."""
    busy = sum(worker["busy_s"] for worker in found["workers"]) / found["p"]
    return float(busy / (1 - found["bubble_span"]))


def ratio(before: Answer, after: Answer) -> float:
    """Makespan of the first over that of the second."""
    return makespan(before) / makespan(after)


def pipelined(two: Answer, many: Answer) -> float:
    """Speed of K parts over that of 2 parts with one micro-batch: the same work is cut K M ways."""
    return (makespan(two) / (two["p"] * two["m"])) / (makespan(many) / (many["p"] * many["m"]))


def gpipe() -> Iterator[Claim]:
    """Table 2 of the paper."""
    for parts, published in ((2, 1.8), (4, 3.4), (8, 6.3)):
        yield Claim(
            system="GPipe",
            says=f"a Transformer runs {published} times as fast on {parts} accelerators with 32 micro-batches as on 2 "
            "with one",
            published=published,
            unit="x",
            setting="TPU v3; equal stages and free transfers here",
            source="Huang et al., NeurIPS 2019, table 2",
            known="R",
            commands=("schedule gpipe --p 2 --m 1", f"schedule gpipe --p {parts} --m 32"),
            ours=pipelined,
        )


def bubbles() -> Iterator[Claim]:
    """Shares that the papers derive."""
    for system, says, published, command, source, known in (
        (
            "Chimera",
            "idle share (D - 2)/(3N/2 + D - 2) with D = N = 8",
            100 * 6 / 18,
            "chimera --p 8 --m 8",
            "Li and Hoefler, SC 2021, table 2",
            "P",
        ),
        (
            "Hanayo",
            "one wave of 4 workers idles (2P - 2)/(3PW + P - 1) = 40%",
            40.0,
            "hanayo --p 4 --m 4 --v 2",
            "Liu et al., SC 2023, by notes on it",
            "2",
        ),
        (
            "DualPipe",
            "idles (PP/2 - 1)(F&B + B - 3W): 2 of 26 for PP = 4 and 8 micro-batches",
            100 * 2 / 26,
            "dualpipe --p 4 --m 8",
            "deepseek-ai/DualPipe",
            "C",
        ),
        (
            "DualPipeV",
            "idles (PP - 1)(F&B + B - 3W) of half chunks: 3 of 27",
            100 * 3 / 27,
            "dualpipev --p 4 --m 8",
            "deepseek-ai/DualPipe",
            "C",
        ),
        (
            "Seq1F1B",
            "idles (p - 1)(f + b)/k: 4.5 of 28.5 for two segments",
            100 * 4.5 / 28.5,
            "seq1f1b --p 4 --m 8 --segments 2",
            "Sun et al., 2024",
            "C",
        ),
        (
            "Interleaved, weight gradients apart",
            "idles (p - 1)(f + i - w)/v: 1.5 of 25.5",
            100 * 1.5 / 25.5,
            "interleaved-zb --p 4 --m 8 --v 2",
            "torch.distributed.pipelining",
            "C",
        ),
    ):
        yield Claim(
            system=system,
            says=says,
            published=published,
            unit="%",
            setting="equal stages, free transfers",
            source=source,
            known=known,
            commands=(f"schedule {command}",),
            ours=bubble,
            tolerance=0.005,
            why="the makespan of m = p is 18, of which 6 are idle: (2P - 2)/(3PW + 2P - 2); what the printed formula "
            "counts was not to be found"
            if system == "Hanayo"
            else "",
        )
    for name, published in (("zb-h1", 1 / 3), ("zb-h2", 0.0), ("zb-v", 0.0), ("v-half", 1 / 2), ("v-min", 2 / 3)):
        yield Claim(
            system=name.upper() if name.startswith("zb") else name.title(),
            says=f"bubble of a step among others is {published:.2g} of 1F1B's",
            published=published,
            unit="of 1F1B",
            setting="p = 8, m = 24, forward, input and weight gradient of equal time",
            source="sail-sg/zero-bubble-pipeline-parallelism, README",
            known="C",
            commands=("schedule 1f1b --p 8 --m 24", f"schedule {name} --p 8 --m 24"),
            rule="most",
            ours=lambda plain, found: (span_s(found) - 72) / (span_s(plain) - 72),
        )
    for name, published, share in (("zb-v", 1.0, 2), ("v-half", 0.5, 2), ("v-min", 1 / 3, 2)):
        yield Claim(
            system=name.upper() if name.startswith("zb") else name.title(),
            says=f"activations of the fullest worker are {published:.2g} of 1F1B's",
            published=published,
            unit="of 1F1B",
            setting="p = 24, m = 72; two chunks per worker",
            source="Qi et al., NeurIPS 2024",
            known="P",
            commands=("schedule 1f1b --p 24 --m 72", f"schedule {name} --p 24 --m 72"),
            ours=lambda plain, found, share=share: peak(found) / share / peak(plain),
            tolerance=0.15,
        )


def gains() -> Iterator[Claim]:
    """Throughputs over that of another schedule."""
    zero_bubble = "--p 8 --m 24 --tf 1 --ti 1 --tw 0.9"
    for system, published, after, known in (("ZB-H1", 1.23, "zb-h1", "R"), ("ZB-H2", 1.31, "zb-h2", "R")):
        yield Claim(
            system=system,
            says=f"up to {published - 1:.0%} more throughput than 1F1B"
            + (" at its memory" if after == "zb-h1" else " where memory allows"),
            published=published,
            unit="x",
            setting="GPT on up to 32 A100, m = 3p; here p = 8, m = 24, weight gradients at 0.9 of a forward",
            source="Qi et al., ICLR 2024",
            known=known,
            commands=(f"schedule 1f1b {zero_bubble}", f"schedule {after} {zero_bubble}"),
            ours=lambda before, found: span_s(before) / span_s(found),
            why="the papers' number is the best of their models, and 1F1B there pays global norms, too",
        )
    yield Claim(
        system="Megatron-LM interleaving",
        says="interleaving adds 10% and more",
        published=1.1,
        unit="x",
        setting="GPT-3 175B, 96 A100, batch 12 to 60; here 96 A100, batch 24",
        source="Narayanan et al., SC 2021, figure 12",
        known="R",
        commands=tuple(
            f"estimate gpt3-175b --gpus 96xA100-80 --seq 2048 --gbs 24 --plan tp8.nosp.pp12{chunks}.dp1.mbs1.rc-full "
            "--attention-kernel materialised --software megatron-lm"
            for chunks in ("", ".vpp2")
        ),
        ours=gain,
        rule="least",
    )
    yield Claim(
        system="Megatron-LM",
        says="502 PFLOP/s with a trillion parameters on 3,072 A100: 163 TFLOP/s each, 52% of the peak",
        published=163,
        unit="TFLOP/s",
        setting="as published, recomputation counted",
        source="Narayanan et al., SC 2021, table 1",
        known="P",
        commands=(
            "estimate megatron-1t --gpus 3072xA100-80 --gbs 3072 --seq 2048 --plan tp8.nosp.pp64.dp6.mbs1.rc-full "
            "--attention-kernel materialised --software megatron-lm",
        ),
        ours=lambda found: 1e-12 * A100_PEAK * float(estimate_of(found)["hfu"]),
    )
    yield Claim(
        system="Breadth-first",
        says="up to 43% more throughput at small batches than Megatron-LM",
        published=1.43,
        unit="x",
        setting="52B on 64 V100-32 over InfiniBand, a sequence per device and step; both as they fit",
        source="Lamy-Poirier, MLSys 2023",
        known="P",
        commands=(
            "estimate anthropic-52b --gpus 64xV100-32 --seq 1024 --dtype fp16 --plan tp8.nosp.pp8.dp1.mbs1.gbs8",
            "estimate anthropic-52b --gpus 64xV100-32 --seq 1024 --dtype fp16 "
            "--plan tp8.nosp.pp8.vpp8.dp1.mbs1.gbs8.breadth-first",
        ),
        ours=gain,
        rule="least",
    )
    chimera = "estimate gpt3-1.3b --gpus 32xA100-40 --seq 2048 --gbs 32 --plan pp8.dp4.mbs1"
    yield Claim(
        system="Chimera",
        says="1.16 to 2.34 times the throughput of other pipelines",
        published=1.16,
        unit="x",
        setting="GPT-2 1.3B on 2,048 P100; here GPT-3 1.3B on 32 A100, as many micro-batches as stages, over 1F1B",
        source="Li and Hoefler, SC 2021",
        known="P",
        commands=(chimera, f"{chimera}.chimera"),
        ours=gain,
        rule="least",
        why="gradients of both copies of each stage are exchanged, which on 32 devices takes about what the "
        "shorter bubble "
        "saves",
    )
    yield Claim(
        system="Hanayo",
        says="up to 30.4% more throughput than other pipelines",
        published=1.304,
        unit="x",
        setting="GPT- and BERT-like models on up to 32 GPUs; here 8 workers, 8 micro-batches, two waves, over 1F1B",
        source="Liu et al., SC 2023",
        known="P",
        commands=("schedule 1f1b --p 8 --m 8", "schedule hanayo --p 8 --m 8 --v 4"),
        ours=ratio,
    )
    yield Claim(
        system="MixPipe",
        says="up to 2.39 times the throughput of synchronous pipelines",
        published=2.39,
        unit="x",
        setting="BERT and GPT-2; here 8 workers, 32 micro-batches, 7 at once a way, over GPipe",
        source="Zhang et al., DAC 2023",
        known="P",
        commands=("schedule gpipe --p 8 --m 32", "schedule mixpipe --p 8 --m 32 --inject 7"),
        ours=ratio,
        why="GPipe idles 18% here, so that no order of equal stages can do better than 1.22; the gain in the "
        "paper must "
        "come from memory (its micro-batches, no recomputation)",
    )
    yield Claim(
        system="DAPPLE",
        says="1.6 times the throughput of GPipe with 12% less memory",
        published=1.6,
        unit="x",
        setting="BERT-48 and others on V100; here GPT-3 1.3B on 8 V100-32, where GPipe recomputes",
        source="Fan et al., PPoPP 2021",
        known="P",
        commands=(
            "estimate gpt3-1.3b --gpus 8xV100-32 --seq 2048 --gbs 32 --dtype fp16 --plan pp8.dp1.mbs1.rc-full.gpipe",
            "estimate gpt3-1.3b --gpus 8xV100-32 --seq 2048 --gbs 32 --dtype fp16 --plan pp8.dp1.mbs1",
        ),
        ours=gain,
        why="the order itself saves memory, not time: what is left is the recomputation that GPipe needs, a third of a "
        "step; unequal stages are not in this row",
    )
    yield Claim(
        system="PipeDream",
        says="up to 5.3 times the speed of data parallelism",
        published=5.3,
        unit="x",
        setting="VGG-16 on V100 over 10 Gbit/s",
        source="Narayanan et al., SOSP 2019",
        known="P",
        why="convolutional networks are not among the models; for Transformers the row of 2BW says what a pipeline "
        "without flush brings",
    )
    yield Claim(
        system="PipeDream-2BW",
        says="up to 3.2 times the throughput of GPipe",
        published=3.2,
        unit="x",
        setting="GPT 2.2B, 3.8B on 64 V100-16; here equal stages, 16 workers, 16 micro-batches, steady state",
        source="Narayanan et al., ICML 2021",
        known="P",
        commands=("schedule gpipe --p 16 --m 16 --tr 1", "schedule pipedream-2bw --p 16 --m 16 --tr 1"),
        ours=lambda before, after: makespan(before) / (after["workers"][0]["busy_s"]),
        why="without a bubble the steady state is 1.94 times as quick; the rest of the paper's gain is memory (larger "
        "micro-batches)",
    )
    bpipe = "estimate gpt3-175b --gpus 64xA100-80 --seq 2048 --gbs 128 --attention-kernel materialised --plan tp8.pp8"
    yield Claim(
        system="BPipe",
        says="1.25 to 2.17 times Megatron-LM on GPT-3, by micro-batches of twice the size that now fit",
        published=1.25,
        unit="x",
        setting="GPT-3 96B on 32 A100-80; here GPT-3 175B on 64, micro-batch 1 with, 2 without full recomputation",
        source="Kim et al., ICML 2023",
        known="P",
        commands=(f"{bpipe}.mbs1.rc-full", f"{bpipe}.mbs2.rc-sel.bpipe"),
        ours=gain,
        rule="least",
    )
    yield Claim(
        system="BPipe",
        says="at most ceil((p + 2)/2) activations on a worker: 5 of 8",
        published=5,
        unit="activations",
        setting="p = 8, m = 16",
        source="Kim et al., ICML 2023",
        known="R",
        commands=("schedule bpipe --p 8 --m 16",),
        ours=peak,
        tolerance=0.0,
    )


def others() -> Iterator[Claim]:
    """Systems around a pipeline."""
    yield Claim(
        system="Varuna",
        says="up to 26% more throughput than other pipelines",
        published=1.26,
        unit="x",
        setting="GPT-2 2.5B, 8.3B on spot V100; here p = 8, m = 32 with recomputation over GPipe, transfers of half a "
        "forward",
        source="Athlur et al., EuroSys 2022",
        known="P",
        commands=("schedule gpipe --p 8 --m 32 --tr 1 --tc 0.5", "schedule varuna --p 8 --m 32 --tr 1 --tc 0.5"),
        ours=ratio,
        why="on even stages and steady links the order gains nothing over GPipe: its gain is against jitter and slow "
        "links, which vary in the paper's spot machines",
    )
    yield Claim(
        system="AvgPipe",
        says="1.7 times the throughput of pipelines on average",
        published=1.7,
        unit="x",
        setting="GNMT, BERT, AWD on 6 GPUs; here two replicas of BERT-large on 4 V100, 8 micro-batches, over 1F1B",
        source="Chen et al., PPoPP 2023",
        known="P",
        commands=tuple(
            f"estimate bert-large --gpus 4x1xV100-32 --dtype fp16 --seq 512 --gbs 64 --plan pp4.dp1.mbs8{how}"
            for how in ("", ".avgpipe-pipelines2")
        ),
        ours=gain,
        why="two replicas fill each other's bubbles, a quarter of the step here, and both are updated; that small "
        "kernels of one leave units of a device to the other is not priced",
    )
    yield Claim(
        system="Bamboo",
        says="3.7 times the throughput of checkpoints on spot machines",
        published=3.7,
        unit="x",
        setting="spot traces of clouds, 10 to 33% of the machines lost each hour",
        source="Thorpe et al., NSDI 2023",
        known="P",
        why="traces of preemptions are not read: `--failures` has a mean rate, under which a lost machine is replaced",
    )
    yield Claim(
        system="FTPipe",
        says="up to 3 times as fast as GPipe-like pipelines of contiguous stages",
        published=3.0,
        unit="x",
        setting="T5-3B on 8 RTX 2080 Ti",
        source="Eliad et al., ATC 2021",
        known="R",
        why="`--schedule ftpipe` and `ftpipe-flush` try its partition; where layers are alike contiguous stages are as "
        "light, and devices of 11 GB with its baselines were not set up",
    )
    yield from (
        Claim(
            system="DynaPipe",
            says=f"up to {published} times the throughput of packing, {model}",
            published=published,
            unit="x",
            setting="FLANv2 on up to 32 A100" + here,
            source="Jiang et al., EuroSys 2024",
            known="P",
            commands=commands,
            ours=gain if commands else None,
            why=why,
        )
        for model, published, here, commands, why in (
            (
                "GPT",
                3.25,
                "; here GPT 6.7B on 8 A100-40 in fp16, with four tensor ranks, and two stages for DynaPipe, as its "
                "artifact runs 8,192 tokens, and lengths of mean 220 and sigma 1.3, log-normal",
                tuple(
                    f"plan {MODELS}/gpt-6.7b-8k.json --gpus 8xA100-40 --dtype fp16 --seq 8192 "
                    f"--lengths lognormal:mean=220,sigma=1.3,max=8192 --packing {how} --gbs 8 "
                    f"--attention-kernel materialised --pin tp=4,pp={stages}"
                    for how, stages in (("concat", 1), ("dynapipe", 2))
                ),
                "the lengths of FLANv2 are not published as numbers, nor is the setting of the largest gain; with "
                "shorter ones (mean 120) ours is 1.6. With flash kernels, which the artifact does not use, it is none",
            ),
            (
                "T5",
                4.39,
                "; here T5-11B on 8 A100-40 in fp16, encoder and decoder of 4,096 tokens, and lengths of mean 110 and "
                "sigma 1.3, log-normal",
                tuple(
                    f"plan t5-11b --gpus 8xA100-40 --dtype fp16 --seq 4096 --encoder-seq 4096 "
                    f"--lengths lognormal:mean=110,sigma=1.3,max=4096 --packing {how} --gbs 16 "
                    f"--attention-kernel materialised"
                    for how in ("concat", "dynapipe")
                ),
                "as above; an encoder's lengths are in proportion to the decoder's, while targets of FLANv2 are "
                "shorter than inputs and its packed rows are full length on both sides",
            ),
        )
    )
    yield Claim(
        system="DeepSeek-V3",
        says="180 thousand H800 hours per 1e12 tokens",
        published=180,
        unit="thousand hours",
        setting="2,048 H800, 16 stages, 64 expert ranks, DualPipe; balanced experts",
        source="arXiv 2412.19437",
        known="P",
        commands=(
            "estimate deepseek-v3 --gpus 2048xH800 --gbs 15360 --seq 4096 --dtype fp8-block --weight-dtype fp8 "
            "--dispatch-dtype fp8 --moment-dtype bf16 --plan "
            "pp16.ep64.epdedup.dp128.z1.mbs1.rc-sel-layernorm-mla_up_proj-moe_act.dualpipe",
        ),
        ours=lambda found: step_s(found) * 2048 / 3600 / (15360 * 4096) * 1e12 / 1e3,
    )
    yield Claim(
        system="Seq1F1B",
        says="30B with 65,536 tokens on 64 A100 without recomputation",
        published=1,
        unit="fits",
        setting="here Qwen2.5 32B, eight tensor ranks, eight stages, four segments",
        source="Sun et al., 2024",
        known="R",
        commands=(
            "estimate qwen2.5-32b --gpus 64xA100-80 --seq 65536 --gbs 16 --plan tp8.pp8.dp1.mbs1.seq1f1b-segments4",
        ),
        ours=fits,
    )
    yield Claim(
        system="TP, CP and PP of Llama 3",
        says="400 TFLOP/s per GPU on 16,384 H100: 41% MFU",
        published=41,
        unit="% MFU",
        setting="405B, 8,192 tokens, 16 stages",
        source="arXiv 2407.21783, table 4",
        known="P",
        commands=(
            "estimate llama-3.1-405b --gpus 16384xH100 --gbs 2048 --seq 8192 --plan tp8.pp16.vpp4.dp128.z1.mbs1",
        ),
        ours=mfu,
    )


def claims() -> Iterator[Claim]:
    """All of them."""
    yield from gpipe()
    yield from bubbles()
    yield from gains()
    yield from others()
