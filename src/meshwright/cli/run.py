"""`run` and `verify`: a plan executed on this machine's devices, and held against one device."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, given, missing

VIOLATIONS = 5

Devices = Annotated[
    str | None,
    typer.Option(
        "--devices", metavar="N", help="Of this machine; virtual CPU devices where it has no others.  [default: 8]",
        show_default=False,
    ),
]  # fmt: skip
Layers = Annotated[
    str | None, typer.Option("--layers", metavar="N", help="Run the model with its first N layers.", show_default=False)
]
Hidden = Annotated[
    str | None, typer.Option("--hidden", metavar="N", help="Run the model at this width.", show_default=False)
]
Vocab = Annotated[
    str | None, typer.Option("--vocab", metavar="N", help="Run the model with so many tokens.", show_default=False)
]
Seq = Annotated[str | None, typer.Option("--seq", metavar="N", help="Tokens of a sample.  [default: 64, or the plan"
                                         " file's]", show_default=False)]  # fmt: skip
Dtype = Annotated[str, typer.Option("--dtype", metavar="NAME", help="fp32, fp64 or bf16 products.")]
Backend = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="local, processes or ray: where the meshes of a plan live.")
]
Ray = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="Ray cluster of --backend ray.", show_default=False)
]
Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts-per-mesh", metavar="N", help="Workers that share the devices of each mesh.  [default: 1]",
        show_default=False,
    ),
]  # fmt: skip
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Of weights, data, dropout.", show_default=False)]


def run(
    model: options.Model = None,
    plan: options.PlanOption = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="N", help="To run.  [default: 10]", show_default=False)
    ] = None,
    backend: Backend = "local",
    ray: Ray = None,
    hosts_per_mesh: Hosts = None,
    devices: Devices = None,
    layers: Layers = None,
    hidden: Hidden = None,
    vocab: Vocab = None,
    seq: Seq = None,
    gbs: options.Gbs = None,
    dtype: Dtype = "fp32",
    seed: Seed = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Timeline of one more step beside the predicted one; .gz is gzipped.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Write the state there, and go on from what is there.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", metavar="N", help="Steps from one checkpoint to the next.  [default: 10]", show_default=False
        ),
    ] = None,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="Go on without lost workers, on a plan for what is left.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Train a model under a plan on this machine: loss and seconds of every step, prediction beside reality.

    MODEL is gpt-tiny, llama-tiny, moe-tiny, mlp-tiny, or one of `models list` that fits here, scaled down if need be.

    \b
      meshwright run gpt-tiny --plan pp2.dp4.mbs2.z1 --steps 20
      meshwright run llama-3.1-8b --layers 4 --hidden 256 --vocab 1024 --plan pp4.dp2.zb-h1 --trace step.json
      meshwright run moe-tiny --plan pp2.dp2 --devices 4 --backend processes
    """
    gather = Gather()
    options = _options(
        gather, model, plan, backend=backend, ray=ray, dtype=dtype, seq=seq, gbs=gbs, devices=devices, layers=layers,
        hidden=hidden, vocab=vocab, seed=seed, hosts_per_mesh=hosts_per_mesh,
    )  # fmt: skip
    course = given(
        steps=gather.whole("--steps", steps), every=gather.whole("--every", every), trace=trace, checkpoint=checkpoint
    )
    gather.done()
    from meshwright.app.run import Course
    from meshwright.app.run import run as execute
    from meshwright.app.run_inputs import RunOptions
    from meshwright.report.run_table import step_line

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    found = execute(
        RunOptions(**options),
        Course(elastic=elastic, **course),
        on_step=lambda done: None if json else out.print(step_line(done.step, done.loss, done.seconds)),
        on_recovery=lambda said: out.warn([said]),
    )
    if trace is not None:
        out.note(f"trace written to {trace}: open it at https://ui.perfetto.dev or chrome://tracing")
    out.show(found.to_dict(), lambda _: found)


def _options(
    gather: Gather, model: str | None, plan: str | None, *, backend: str, ray: str | None, dtype: str, seq: str | None,
    gbs: str | None, **texts: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Fields of `RunOptions`; whole numbers among them are read."""
    if plan is None:
        gather.problem(missing("--plan", "one line such as pp2.dp4.mbs1.z1, or a plan file"))
    numbers = {
        name: gather.whole(f"--{name.replace('_', '-')}", text, 0 if name == "seed" else 1)
        for name, text in texts.items()
    }
    numbers |= {"seq_len": gather.whole("--seq", seq), "global_batch": gather.whole("--gbs", gbs)}
    return {"model": model, "plan": plan or "", "backend": backend, "dtype": dtype} | given(ray=ray, **numbers)


def verify(
    model: options.Model = None,
    plan: options.PlanOption = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="N", help="Of the optimizer.  [default: 10]", show_default=False)
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="X",
            help="Of a tensor in max-norm.  [default: 1e-5, fp64 1e-9, bf16 2e-2]",
            show_default=False,
        ),
    ] = None,
    backend: Backend = "local",
    ray: Ray = None,
    hosts_per_mesh: Hosts = None,
    devices: Devices = None,
    layers: Layers = None,
    hidden: Hidden = None,
    vocab: Vocab = None,
    seq: Seq = None,
    gbs: options.Gbs = None,
    dtype: Dtype = "fp32",
    seed: Seed = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> int:
    """Compare a plan's run with one device, tensor by tensor; exit 5 where they differ by more than the tolerance.

    \b
      meshwright verify gpt-tiny --plan pp2.dp4.mbs1.zb-h1
      meshwright verify moe-tiny --plan pp4.dp2 --dtype fp64
    """
    gather = Gather()
    options = _options(
        gather, model, plan, backend=backend, ray=ray, dtype=dtype, seq=seq, gbs=gbs, devices=devices, layers=layers,
        hidden=hidden, vocab=vocab, seed=seed, hosts_per_mesh=hosts_per_mesh,
    )  # fmt: skip
    asked = given(steps=gather.whole("--steps", steps), tolerance=gather.number("--tolerance", tolerance))
    gather.done()
    from meshwright.app.run_inputs import RunOptions
    from meshwright.app.verify import verify as compare

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with out.progress("running both"):
        found = compare(RunOptions(**options), **asked)
    out.show(found.to_dict(), lambda _: found)
    return 0 if found.ok else VIOLATIONS
