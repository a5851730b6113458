"""Drawn mixed plans run with every worker slowed as its device: how many run, and the prediction beside the run.

    python -m benchmarks.emulated [--plans 25] [--runs 25]

Clusters of two or three NVIDIA kinds and at most eight devices, four layers of Llama-3.2-1B, batches of 12 to 48. What
runs is a narrow model of as many layers, on virtual devices of this machine; each task and message takes what the
planner prices for the planned model (`run --emulate`). Beside each plan the same stages with layers, and pipelines with
micro-batches, shared out evenly.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from statistics import median

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")
os.environ.setdefault("NPROC", "64")

import numpy as np

import meshwright as mw
from meshwright.errors import MeshwrightError
from meshwright.estimate.timeline import step_timeline
from meshwright.library.models import resolve
from meshwright.planning.plan_source import planned_job
from meshwright.runtime.mixed_plan import check_plan_runs, samples_of
from meshwright.runtime.train import Steps, train
from meshwright.runtime.training.of_job import job_training
from meshwright.specs.job import Job
from meshwright.specs.plan import Pipeline, StrategyRun
from meshwright.zoo.tiny import scaled_model

KINDS = ("H100", "A100-80", "A100-40", "L40S", "H200")
LENGTH = 8
SECONDS = 4.0
"""Of an emulated step: so long that this machine's own work hides in it."""


def drawn(seed: int) -> Job | None:
    """The plan that uses most devices of those found for a drawn cluster; None where one kind is best by far."""
    rng = np.random.default_rng(seed)
    count = int(rng.choice([2, 2, 3]))
    kinds = rng.choice(KINDS, count, replace=False)
    sizes = rng.choice([1, 2, 4] if count == 2 else [1, 2], count)
    gpus = ",".join(f"{size}x{kind}" for size, kind in zip(sizes, kinds, strict=True))
    model = scaled_model(resolve("llama-3.2-1b"), layers=4)
    plans = mw.plan(model, gpus=gpus, global_batch=int(rng.choice([12, 24, 48])), seq_len=2048, top=6)
    mixed = [job for one in plans if len(groups(job := planned_job(one)[0])) > 1]
    return max(mixed, key=lambda job: job.plan.devices, default=None)  # type: ignore[type-var, return-value]


def groups(job: Job) -> set[str]:
    """Kinds of device that a plan uses."""
    from meshwright.planning.plan_shape import groups_of

    return {name for at in range(len(job.plan.pipelines)) for name in groups_of(job, at)}


def even(job: Job) -> Job | None:
    """The plan with layers shared out evenly over stages, and micro-batches over pipelines where they are of one size;
    None where that is the plan itself, or cannot be."""
    plan, pipelines = job.plan, []
    if plan.joint_ranks:
        return None
    total = sum(pipeline.num_micro_batches for pipeline in plan.pipelines)
    alike = len({samples_of(plan, pipeline) for pipeline in plan.pipelines}) == 1
    for pipeline in plan.pipelines:
        chunks = sorted(pipeline.chunks(), key=lambda chunk: chunk.virtual_stage)
        if len(chunks) > 1 and any(len(chunk.runs) != 1 for chunk in chunks):
            return None
        if alike and total % len(plan.pipelines) == 0:
            pipeline = replace(pipeline, num_micro_batches=total // len(plan.pipelines))
        if len(chunks) == 1:
            pipelines.append(pipeline)
            continue
        whole, rest = divmod(plan.num_layers, len(chunks))
        counts = [whole + (at < rest) for at in range(len(chunks))]
        pipelines.append(_with_layers(pipeline, counts))
    changed = replace(plan, pipelines=tuple(pipelines))
    return None if changed == plan else replace(job, plan=changed, name=None)


def _with_layers(pipeline: Pipeline, counts: list[int]) -> Pipeline:
    first = np.append(0, np.cumsum(counts)).tolist()
    return replace(
        pipeline,
        workers=tuple(
            replace(
                worker,
                chunks=tuple(
                    replace(
                        chunk,
                        layers=((first[at], first[at + 1] - 1),),
                        runs=(StrategyRun(layers=counts[at], strategy=chunk.runs[0].strategy),),
                    )
                    for chunk in worker.chunks
                    for at in [chunk.virtual_stage]
                ),
            )
            for worker in pipeline.workers
        ),
    )


def emulated_s(job: Job, scale: float) -> tuple[float, float]:
    """Planned and measured seconds of a step, both as the planned devices take them."""
    import jax

    spec = scaled_model(job.model, hidden=32, vocab=64)
    training = job_training(spec=spec, seq_len=LENGTH, job=job, name="drawn", emulate=scale)
    taken: list[float] = []
    ended = train(
        training, jax.devices(), Steps(count=3), on_step=lambda number, loss, seconds, step: taken.append(seconds)
    )
    ended.step.close()
    return training.planned_step.estimate.step_time_s, median(taken[1:]) / scale


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plans", type=int, default=25)
    parser.add_argument("--runs", type=int, default=25)
    asked = parser.parse_args()
    able = within = seed = found = 0
    while found < asked.plans:
        job, seed = drawn(seed), seed + 1
        if job is None:
            continue
        found += 1
        try:
            check_plan_runs(job.plan, LENGTH)
        except MeshwrightError as error:
            print(f"{found} refused: {error.problems[0].what}", flush=True)
            continue
        able += 1
        if able > asked.runs:
            continue
        scale = SECONDS / step_timeline(job.plan, job.model, job.cluster, job.workload).estimate.step_time_s
        planned, measured = emulated_s(job, scale)
        within += abs(planned / measured - 1) <= 0.1
        level = even(job)
        beside = "" if level is None else " / ".join(f"{one * 1e3:.0f}" for one in emulated_s(level, scale))
        shape = " | ".join(
            ">".join(str(worker.num_devices) for worker in pipeline.workers) for pipeline in job.plan.pipelines
        )
        print(
            f"{found} {job.cluster.name}: {shape}; planned {planned * 1e3:.0f} ms, emulated run {measured * 1e3:.0f} ms"
            f" ({planned / measured - 1:+.1%}); even split {beside or '-'}",
            flush=True,
        )
    print(f"{able} of {found} run; of {min(able, asked.runs)} runs {within} within 10% of the prediction")


if __name__ == "__main__":
    main()
