"""`size`: how many devices are enough."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, given, missing
from meshwright.records import as_json


def size(
    model: options.Model = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="D", help="A name of `gpus list`.", show_default=False)
    ] = None,
    days: options.Days = None,
    step_time: Annotated[
        str | None, typer.Option("--step-time", metavar="S", help="Seconds a step may take.", show_default=False)
    ] = None,
    max_price: options.MaxPrice = None,
    tokens: options.Tokens = None,
    seq: options.Seq = None,
    gbs: options.Gbs = None,
    tokens_per_step: options.TokensPerStep = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    price: options.Price = None,
    pin: options.Pin = None,
    forbid: options.Forbid = None,
    output: options.PlanOutput = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """The fewest devices whose best plan meets a deadline, a step time or a budget.

    \b
      meshwright size llama-3.1-70b --device H100 --days 30 --tokens 2T
      meshwright size llama-3-8b --device A100-80 --step-time 10
    """
    gather = Gather()
    if device is None:
        gather.problem(missing("--device", "for example --device H100"))
    if days is None and step_time is None and max_price is None:
        gather.problem(missing("--days, --step-time or --max-price", "for example --step-time 10"))
    if tokens is None and (days is not None or max_price is not None):
        gather.problem(missing("--tokens", "for example --tokens 15T: the length of a run depends on it"))
    limits = given(
        days=gather.number("--days", days),
        step_time=gather.number("--step-time", step_time),
        max_price=gather.number("--max-price", max_price),
        price=gather.number("--price", price, zero=True),
        pin=pin,
        forbid=forbid,
    )
    inputs = given(
        seq_len=seq,
        global_batch=gbs,
        tokens_per_step=tokens_per_step,
        dtype=dtype,
        optimizer=optimizer,
        tokens=tokens,
    )
    from meshwright.app.size import size as fewest
    from meshwright.formats.writing import check_file, write_file

    if output is not None:
        gather.attempt(lambda: check_file(output))
    gather.with_inputs(model, inputs | {"gpus": f"1x{device or 'H100'}"})
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with out.progress("searching"):
        found = fewest(model or "", device or "", **inputs, **limits)
    document = found.to_dict()
    if output is not None:
        write_file(output, as_json(document["plan_set"]))
        out.note(f"the plans for {found.devices} devices written to {output}")
    out.show(document, lambda _: found)
