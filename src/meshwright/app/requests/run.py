"""What may be asked of `run` and `verify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.fields.field import ask, group
from meshwright.fields.job import MODEL_HELP, NAME, PLAN_HELP
from meshwright.fields.kinds import FieldKind, Flag, Number, Whole
from meshwright.fields.request import Reading, Request

MOST_DEVICES = 1024
"""Most devices of one machine: each virtual device takes threads and memory when JAX starts, and no machine has more
real ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFields:
    """A plan, the size its model runs at, and where."""

    model: str | None = ask(MODEL_HELP, metavar="MODEL", argument=True)
    plan: str = ask(PLAN_HELP, FieldKind(metavar="PLAN"), required="one line such as pp2.dp4.mbs1.z1, or a plan file")
    backend: str = ask("local, processes or ray: where the meshes of a plan run.", NAME, default="local", usual="local")
    ray: str | None = ask("Address of the Ray cluster, with --backend ray.", FieldKind(metavar="ADDRESS"))
    hosts_per_mesh: int = ask("Workers per mesh.", Whole(), default=1, usual="1")
    worker_devices: str = ask(
        "Devices of workers in other processes: cpu, gpu (NVIDIA), rocm, tpu or a device such as H100, for all or one"
        " for each mesh; plan: those of a mixed plan file. Only cpu has been tested.",
        FieldKind(metavar="NAME[,NAME]"),
        default="cpu",
        usual="cpu",
    )
    devices: int | None = ask(
        "Devices of this machine; virtual CPU devices if it has no accelerators.", Whole(high=MOST_DEVICES), usual="8"
    )
    layers: int | None = ask("Run only the first N layers of the model.", Whole())
    hidden: int | None = ask("Hidden size to run the model at.", Whole())
    vocab: int | None = ask("Vocabulary size to run the model with.", Whole())
    seq_len: int | None = ask("Sequence length.", Whole(), option="--seq", usual="64, or the plan file's")
    global_batch: int | None = ask("Global batch in sequences.", Whole(), option="--gbs")
    dtype: str = ask("Compute format: fp32, fp64, bf16 or fp16 (its loss scaled).", NAME, default="fp32", usual="fp32")
    optimizer: str | None = ask(
        "Optimizer: adam, kfac or pipefisher; options follow a colon, as in kfac:every=2.",
        NAME,
        usual="adam, or the plan file's",
    )
    seed: int = ask("Seed of weights, data and dropout.", Whole(low=0), default=0, usual="0")
    emulate: float | None = ask(
        "Emulate the plan's devices: tasks and messages take S seconds for each planned second.",
        Number(metavar="S"),
    )
    timeout_s: float = ask(
        "Longest time for one instruction of a worker in another process, in seconds.",
        Number(),
        default=300.0,
        cli=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest(Request):
    """Train a model under a plan on this machine. Shows loss and time of every step, with the prediction.

    MODEL is gpt-tiny, llama-tiny, moe-tiny, pr-moe-tiny, mlp-tiny, or one of `models list` that fits here, scaled down
    if need be.
    """

    examples: ClassVar = (
        "run gpt-tiny --plan pp2.dp4.mbs2.z1 --steps 20",
        "run llama-3.1-8b --layers 4 --hidden 256 --vocab 1024 --plan pp4.dp2.zb-h1 --trace step.json",
        "run moe-tiny --plan pp2.dp2 --devices 4 --backend processes",
    )
    returns: ClassVar = "Loss and seconds of every step, beside the prediction."
    positional: ClassVar = ("model", "plan")
    calls: ClassVar = {
        "on_step": (
            "Callable[[StepDone], None]",
            "Called after every step with its number, loss and seconds, such as to log them to TensorBoard or W&B.",
        ),
        "on_recovery": ("Callable[[str], None]", "Called after every recovery from lost workers with what happened."),
    }

    execution: ExecutionFields = group(ExecutionFields)
    steps: int = ask("Steps to run.", Whole(), default=10, usual="10")
    trace: str | None = ask(
        "Trace file of one extra step beside the predicted one; gzipped if it ends in .gz.", FieldKind(metavar="FILE")
    )
    profile: str | None = ask(
        "Folder for a profile by jax.profiler of one extra step, for XProf, TensorBoard or Perfetto.",
        FieldKind(metavar="DIR"),
    )
    checkpoint: str | None = ask("Checkpoint folder: resume from it, and write to it.", FieldKind(metavar="DIR"))
    every: int = ask("Steps between checkpoints.", Whole(), default=10, usual="10")
    elastic: bool = ask("When workers are lost, re-plan for the rest and continue.", Flag())

    def rules(self, reading: Reading) -> None:
        """An elastic run loses workers, and goes on from a checkpoint; a profile is of one process."""
        if self.elastic and self.checkpoint is None:
            what, why = "an elastic run without checkpoints", "it resumes from the last checkpoint"
            reading.problem(what, why, f"{reading.called('checkpoint')} DIR", "checkpoint", "MW252")
        if self.profile is not None and self.execution.backend != "local":
            what, why = "a profile of workers in other processes", "jax.profiler records the process that it runs in"
            fix = f"--backend local, or {reading.called('trace')} FILE, which times every worker"
            reading.problem(what, why, fix, "profile", "MW252")
        if self.elastic and self.execution.backend == "local":
            what, why = "an elastic run in one process", "meshes that share a process are lost together"
            reading.problem(what, why, "--backend processes or --backend ray", "backend", "MW252")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest(Request):
    """Compare a plan's run with one device, tensor by tensor. Exit 5 where they differ by more than the tolerance."""

    examples: ClassVar = (
        "verify gpt-tiny --plan pp2.dp4.mbs1.zb-h1",
        "verify moe-tiny --plan pp4.dp2 --dtype fp64",
    )
    returns: ClassVar = "The largest difference of every tensor."
    positional: ClassVar = ("model", "plan")

    execution: ExecutionFields = group(ExecutionFields)
    steps: int = ask("Optimizer steps.", Whole(), default=10, usual="10")
    tolerance: float | None = ask(
        "Largest relative difference of a tensor, in max-norm.", Number(), usual="1e-5, fp64 1e-9, bf16 2e-2"
    )
