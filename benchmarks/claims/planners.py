"""Claims of planners."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.claims.claim import Answer, Claim, Rule, gain, step_s

MODELS = "benchmarks/claims/models"
NEAR: Rule = "near"
MOST: Rule = "most"


def alpa() -> Iterator[Claim]:
    """Plans that Alpa's repository ships, and its gains."""
    where = "--seq 1024 --gbs 1024 --dtype fp16"
    for what, model, gpus, plan in (
        (
            "6.7B on 16 V100: two stages of 2 x 4 devices, 64 micro-batches",
            "gpt3-6.7b",
            "2xp3.16xlarge",
            "tp4.nosp.pp2.dp2.z1.mbs8.rc-full",
        ),
        (
            "15B on 32 V100: four stages of 2 x 4 devices, 128 micro-batches",
            f"{MODELS}/gpt-15b.json",
            "4xp3.16xlarge",
            "tp4.nosp.pp4.dp2.z1.mbs4.rc-full",
        ),
        (
            "2.6B on 8 V100: three stages, 128 micro-batches (here two equal ones)",
            f"{MODELS}/gpt-2.6b.json",
            "1xp3.16xlarge",
            "pp2.dp4.mbs2.z1.rc-full",
        ),
    ):
        yield Claim(
            system="Alpa",
            says=f"its plan for GPT {what}",
            published=1.0,
            unit="x",
            setting="the step of Alpa's plan over that of ours; V100-16, 25 Gbit/s, batch 1,024",
            source="alpa-projects/alpa, suite_auto_gpt.py",
            known="C",
            commands=(f"estimate {model} --gpus {gpus} {where} --plan {plan}", f"plan {model} --gpus {gpus} {where}"),
            ours=gain,
            rule="least",
            why="1 and more: ours is no slower",
        )
    moe = "plan deepseek-moe-16b --seq 1024 --gbs 1024 --dtype fp16"
    for hosts, published, machine in ((2, 3.5, "p3dn.24xlarge"), (4, 9.7, "p3.16xlarge")):
        yield Claim(
            system="Alpa",
            says=f"{published} times DeepSpeed on GShard MoE, {hosts} nodes",
            published=published,
            unit="x",
            setting=f"V100-16, 25 Gbit/s; here DeepSeek-MoE 16B on {hosts} {machine}: the best plan of all over "
            f"the best "
            "without a pipeline",
            source="Zheng et al., OSDI 2022",
            known="R",
            commands=tuple(f"{moe} --gpus {hosts}x{machine}{pins}" for pins in (" --pin pp=1", "")),
            ours=gain,
            why="16B do not fit two machines of V100-16, and the larger ones have four times the links"
            if hosts == 2
            else "the base is the best plan without a pipeline, which places experts inside nodes where "
            "DeepSpeed did not",
        )


def hybrids() -> Iterator[Claim]:
    """Planners over the plan of an expert."""
    job = "gpt3-13b --gpus 4x8xA100-40 --seq 2048 --gbs 256"
    for system, published, source in (
        ("Aceso", 1.33, "Liu et al., EuroSys 2024"),
        ("Mist", 1.28, "Zhu et al., EuroSys 2025"),
        ("nnScaler", 3.5, "Lin et al., OSDI 2024"),
    ):
        yield Claim(
            system=system,
            says=f"{'up to ' if system != 'Mist' else ''}{published} times Megatron-LM's and others' plans",
            published=published,
            unit="x",
            setting="GPT-3 13B on 32 A100-40 here: the best plan of all over the best that recomputes "
            "everything and does "
            "not shard states",
            source=source,
            known="P",
            commands=(f"plan {job} --pin zero=z0 --pin recompute=full", f"plan {job}"),
            ours=gain,
            why="its gain is on Swin and AlphaFold2, which are not among the models" if system == "nnScaler" else "",
        )
    yield Claim(
        system="Metis",
        says="1.05 to 8.43 times as fast on mixed devices",
        published=1.05,
        unit="x",
        setting="three kinds of devices; here Llama-3.1 70B on 64 H100 and 64 A100 over the H100 alone",
        source="Um et al., ATC 2024",
        known="P",
        commands=(
            "plan llama-3.1-70b --gpus 64xH100 --gbs 1024",
            "plan llama-3.1-70b --gpus 64xH100,64xA100-80 --gbs 1024",
        ),
        ours=lambda alone, both: step_s(alone) / step_s(both),
        rule="least",
    )


def by_profiles(cases: Answer | None) -> Iterator[Claim]:
    """Against Sailor and Metis, by Sailor's simulator and profiles.

    Args:
        cases: geometric means by planner, where profiles were given.
    """
    for system, published, unit, says, rule in (
        ("Tangram", 2.3, "x", "up to 2.3 times the throughput of Metis' and Sailor's plans", NEAR),
        ("Sailor", 1.0, "x", "its best plans on mixed clusters, which ours are no slower than", MOST),
    ):
        yield Claim(
            system=system,
            says=says,
            published=published,
            unit=unit,
            setting="clusters not published; here OPT-350M and GPT-Neo-2.7B on five mixes of A100-40 and V100-16 by "
            "measured profiles: "
            + (
                "largest gain over the better of both"
                if system == "Tangram"
                else "step of ours over Sailor's, geometric mean"
            ),
            source="arXiv 2606.16907, abstract" if system == "Tangram" else "eth-easl/sailor, plans of its planner",
            known="P" if system == "Tangram" else "C",
            ours=None if cases is None else (lambda name=system: float(cases[name])),
            rule=rule,
            from_files=True,
            why="its clusters are not known; the compute of these five allows 1.26 to 1.83 over the better of both"
            if system == "Tangram"
            else "",
        )


def claims(cases: Answer | None = None) -> Iterator[Claim]:
    """All of them."""
    yield from alpa()
    yield from hybrids()
    yield from by_profiles(cases)
