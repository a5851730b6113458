"""Public headline runs: who trained what, how long a step took, what we say, and the command that says it.

`python -m benchmarks.headlines` prints the table that stands on the accuracy page. Every run is one whose devices,
parallel degrees and batch its authors published; a figure given as a rate is turned into seconds per step with the FLOP
that the source counts. What a source leaves open is named with the run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

import meshwright
from benchmarks import markdown_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One published run."""

    who: str
    what: str
    published_s: float
    """Seconds per optimizer step."""
    published: str
    """The figure in the words of the source."""
    source: str
    date: str
    model: str
    plan: str
    options: dict[str, str] = field(default_factory=dict)
    """Of `estimate`, by the name of the option."""
    assumed: str = ""
    """What the source leaves open."""

    @property
    def command(self) -> str:
        """The command that prices the run."""
        words = ["meshwright", "estimate", self.model, "--plan", self.plan]
        for name, value in self.options.items():
            words += [f"--{name}", value]
        return shlex.join(words)

    def predicted(self) -> meshwright.PlanSet:
        """The run, priced."""
        names = {"gbs": "global_batch", "seq": "seq_len"}
        given = {names.get(name, name.replace("-", "_")): value for name, value in self.options.items()}
        numbers = {name: int(value) if value.isdigit() else value for name, value in given.items()}
        return meshwright.estimate(self.model, plan=self.plan, **numbers)


def gpt_step_s(
    tflops: float, devices: int, *, layers: int, hidden: int, vocab: int, tokens: tuple[int, int], passes: int
) -> float:
    """Seconds of a step from TFLOP/s per device as Megatron-LM counts them.

    24 passes B s l h^2 (1 + s / 6h + V / 16lh), with 4 passes where every layer is computed again in backward, else 3.

    Args:
        tflops: per device.
        devices: of the run.
        layers: l.
        hidden: h.
        vocab: V.
        tokens: B sequences of s tokens.
        passes: 3 or 4.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), appendix.
    """
    batch, seq = tokens
    once = 24 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
    return passes * once / (devices * tflops * 1e12)


SCORES = {"attention-kernel": "materialised"}
MEGATRON_2021 = {"software": "megatron-lm", **SCORES}
DEEPSPEED = {"software": "megatron-deepspeed", **SCORES}
"""Before fused attention: scores are written to memory."""

HEADLINES = (
    Headline(
        who="DeepSeek-AI",
        what="DeepSeek-V3 671B, 2,048 H800",
        published_s=180e3 * 3600 / 1e12 * 15360 * 4096 / 2048,
        published="180 thousand H800 hours per 1e12 tokens",
        source="arXiv 2412.19437, sections 1, 3.1 to 3.3 and 4.2",
        date="2024-12",
        model="deepseek-v3",
        plan="pp16.ep64.epdedup.dp128.z1.mbs1.rc-sel-layernorm-mla_up_proj-moe_act.dualpipe",
        options={
            "gpus": "2048xH800",
            "gbs": "15360",
            "seq": "4096",
            "dtype": "fp8-block",
            "weight-dtype": "fp8",
            "dispatch-dtype": "fp8",
            "moment-dtype": "bf16",
        },
        assumed="micro-batch; balanced experts; the mean over the run counts the growing batch of its start",
    ),
    *(
        Headline(
            who="Meta",
            what=f"Llama 3 405B, {devices:,} H100",
            published_s=seconds,
            published=f"{tflops} TFLOP/s per GPU",
            source="arXiv 2407.21783, table 4 and section 3.3.2",
            date="2024-07",
            model="llama-3.1-405b",
            plan=f"tp8.pp16.vpp4.dp{dp}.z1.mbs1",
            options={"gpus": f"{devices}xH100", "gbs": "2048", "seq": "8192"},
            assumed="chunks per stage, micro-batch; 6 N tokens and half to all of attention are counted as FLOP; "
            "its gradients are sharded too (FSDP without resharding after forward), priced as z1",
        )
        # 405.8e9 parameters, 126 layers of width 16384: 6 N T + 9 L h s T, the mean of half and all of attention.
        for devices, dp, tflops, seconds in (
            (8192, 64, 430, (6 * 405.8e9 + 9 * 126 * 16384 * 8192) * 2048 * 8192 / 8192 / 430e12),
            (16384, 128, 400, (6 * 405.8e9 + 9 * 126 * 16384 * 8192) * 2048 * 8192 / 16384 / 400e12),
        )
    ),
    Headline(
        who="ByteDance",
        what="175B (MegaScale), 12,288 A100",
        published_s=6.34,
        published="6.34 s per iteration, 55.2% MFU",
        source="arXiv 2402.15627, tables 1 and 2, sections 2 and 6.1",
        date="2024-02",
        model="gpt3-175b",
        plan="tp8.pp8.vpp6.dp192.z1.mbs1.tpov",
        options={"gpus": "12288xA100-80", "gbs": "6144", "seq": "2048"},
        assumed="micro-batch; A100 (the paper says Ampere; 312 TFLOP/s fit its MFU); its parallel blocks, "
        "windows of attention, LAMB, 128 heads and vocabulary of 64,000 are not modelled; its ZeRO 2 is priced as z1",
    ),
    *(
        Headline(
            who="Microsoft and NVIDIA",
            what=f"MT-NLG 530B, {devices:,} A100",
            published_s=seconds,
            published=f"{seconds} s per iteration, {tflops} TFLOP/s per GPU",
            source="arXiv 2201.11990, sections 2.2, 2.4 and 3.2",
            date="2022-01",
            model="turing-530b",
            plan=f"tp8.nosp.pp35.dp{devices // 280}.z1.mbs1.rc-full.nodpov",
            options={"gpus": f"{devices}xA100-80", "gbs": "1920", "seq": "2048", **DEEPSPEED},
            assumed="micro-batch; stage of ZeRO; recompute (its 126 TFLOP/s are 4/3 of the 30.2% MFU that "
            "arXiv 2204.02311 counts)",
        )
        for devices, seconds, tflops in ((2240, 60.1, 126), (2800, 50.2, 121), (3360, 44.4, 113))
    ),
    Headline(
        who="NVIDIA",
        what="GPT 1T (Megatron-LM), 3,072 A100",
        published_s=gpt_step_s(163, 3072, layers=128, hidden=25600, vocab=51200, tokens=(3072, 2048), passes=4),
        published="163 TFLOP/s per GPU, recompute counted",
        source="arXiv 2104.04473, table 1; NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh",
        date="2021-04",
        model="megatron-1t",
        plan="tp8.nosp.pp64.dp6.mbs1.rc-full",
        options={"gpus": "3072xA100-80", "gbs": "3072", "seq": "2048", **MEGATRON_2021},
    ),
    Headline(
        who="BigScience",
        what="BLOOM 176B, 384 A100",
        published_s=105.22,
        published="105.22 s per iteration, 149 TFLOP/s per GPU, recompute counted",
        source="bigscience-workshop/bigscience, train/tr11-176B-ml (README.md, chronicles.md, tr11-176B-ml.slurm)",
        date="2022-03",
        model="bloom-176b",
        plan="tp4.nosp.pp12.dp8.z1.mbs2.rc-full.nodpov",
        options={"gpus": "384xA100-80", "gbs": "2048", "seq": "2048", **DEEPSPEED},
        assumed="not modelled: dropout of 0.1, which the published config leaves out; a launch script that waits for "
        "every kernel (CUDA_LAUNCH_BLOCKING=1)",
    ),
    Headline(
        who="Meta",
        what="OPT-175B, 992 A100",
        published_s=gpt_step_s(147, 992, layers=96, hidden=12288, vocab=50272, tokens=(992, 2048), passes=4),
        published="up to 147 TFLOP/s per GPU",
        source="arXiv 2205.01068, section 2.4 and table 1; facebookresearch/metaseq, projects/OPT/chronicles",
        date="2022-05",
        model="opt-175b",
        plan="tp8.nosp.fsdp.dp124.mbs8.rc-full",
        options={"gpus": "992xA100-80", "gbs": "992", "seq": "2048", **MEGATRON_2021},
        assumed="its batch of 2 M tokens as 992 sequences; every layer recomputed and counted (its 4.30e23 FLOP over "
        "300e9 tokens are 8 a parameter)",
    ),
    Headline(
        who="Google",
        what="PaLM 540B, 6,144 TPU v4",
        published_s=2048 * 2048 / 238.3e3,
        published="238.3 thousand tokens/s, 46.2% MFU",
        source="arXiv 2204.02311, sections 4, 4.1 and 5",
        date="2022-04",
        model="palm-540b",
        plan="tp12.nosp.hsdp256.dp512.mbs4.rc-full",
        options={"gpus": "6144xTPU-v4", "gbs": "2048", "seq": "2048", "software": "xla"},
        assumed="the whole batch in one pass",
    ),
    *(
        Headline(
            who="NVIDIA",
            what=f"Nemotron-4 340B, {devices:,} H100",
            published_s=seconds,
            published=f"{seconds} s per iteration, {mfu}% MFU",
            source="arXiv 2406.11704, table 2 and section 2.3",
            date="2024-06",
            model="nemotron-4-340b",
            plan=f"tp8.pp12.vpp8.dp{dp}.z1.mbs1",
            options={"gpus": f"{devices}xH100", "gbs": str(batch), "seq": "4096"},
            assumed="chunks per stage: a layer each; micro-batch",
        )
        for devices, dp, batch, seconds, mfu in (
            (1536, 16, 768, 10.3, 42.4),
            (3072, 32, 1536, 10.3, 42.3),
            (6144, 64, 2304, 8.0, 41.0),
        )
    ),
)
"""In the order of the table."""


def headline_text() -> str:
    """The table, and what each run leaves open."""
    rows, notes = [], []
    for run in HEADLINES:
        ours_s = run.predicted().plans[0].estimate.step_time_s
        error = f"{ours_s / run.published_s - 1:+.0%}"
        rows.append(
            (run.who, run.what, f"{run.published_s:.3g} s", f"{ours_s:.3g} s", error, run.published, run.source)
        )
        notes.append(f"- {run.what}: `{run.command}`" + (f" (open: {run.assumed})" if run.assumed else ""))
    headings = ("who", "what", "published", "ours", "error", "as published", "source")
    return markdown_table(headings, rows) + "\n\n" + "\n".join(dict.fromkeys(notes))


if __name__ == "__main__":
    print(headline_text())
