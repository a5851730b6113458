"""`trace`: one step of a plan as a trace, a figure, or text."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, given, missing


def trace(
    plan: Annotated[
        str | None,
        typer.Argument(
            metavar="PLAN", help="A plan file, as plans.json#2, or one line, with --model.", show_default=False
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Trace for Perfetto and Chrome; .gz is gzipped.", show_default=False
        ),
    ] = None,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Figure for papers.", show_default=False)
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Draw it here; so does naming no file.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Of a plan in one line.", show_default=False)
    ] = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq: options.Seq = None,
    gbs: options.Gbs = None,
    tokens_per_step: options.TokensPerStep = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    attention_kernel: options.AttentionKernel = None,
    expert_imbalance: options.ExpertImbalance = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """One step of a plan, task by task: a trace for Perfetto and Chrome, a figure, or text.

    \b
      meshwright plan llama-3.1-70b --gpus 64xH100 -o plans.json
      meshwright trace plans.json#1 -o step.json.gz --svg step.svg
      meshwright trace tp8.pp4.z1.mbs1.rc-full --model llama-3.1-70b --gpus 64xH100
    """
    gather = Gather()
    if plan is None:
        gather.problem(missing("PLAN", "a plan file, or one line such as tp8.pp4.mbs1.z1 with --model and --gpus"))
    inputs = given(
        cluster=cluster,
        gpus=gpus,
        seq_len=seq,
        global_batch=gbs,
        tokens_per_step=tokens_per_step,
        dtype=dtype,
        optimizer=optimizer,
        attention_kernel=attention_kernel,
        expert_imbalance=gather.number("--expert-imbalance", expert_imbalance),
    )
    from meshwright.app.trace import check_files
    from meshwright.app.trace import trace as draw
    from meshwright.planning.plan_source import is_file

    if plan is not None and model is None and not is_file(plan):
        gather.problem(missing("--model", "for example --model llama-3.1-70b; only a plan file carries its model"))
    gather.attempt(partial(check_files, output, svg))
    if model is not None:
        gather.with_inputs(model, inputs)
    gather.done()
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with out.progress("simulating"):
        found = draw(plan or "", output, svg=svg, model=model, **inputs)
    out.warn(found.warnings)
    if output is not None:
        out.note(f"trace written to {output}: open it at https://ui.perfetto.dev or chrome://tracing")
    if svg is not None:
        out.note(f"figure written to {svg}")
    if not json and not text and (output is not None or svg is not None):
        out.print(found.title)
        return
    out.show(found.to_dict(), lambda _: found)
