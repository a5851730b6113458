"""`tune` and `calculon tune`: a tuner on the space of `plan`, or of the Calculon model, against the exact optimum."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, given, missing

if TYPE_CHECKING:
    from meshwright.app.tune_answer import TuneAnswer
    from meshwright.search.tuners.base import Trial

With = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="TUNER", show_default=False,
        help="random, optuna, smac or ray-tune; optuna:gp, ray-tune:optuna+asha. Repeatable to compare.  "
        "[default: random; all installed to compare]",
    ),
]  # fmt: skip
Trials = Annotated[str | None, typer.Option("--trials", metavar="N", help="Trials of a study.  [default: 100]")]
Storage = Annotated[
    str | None,
    typer.Option("--storage", metavar="FILE", help="Keep trials in sqlite:///trials.db.", show_default=False),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what the storage holds.")]
Compare = Annotated[bool, typer.Option("--compare", help="Several tuners with the same budget.")]
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Of the first study.  [default: 0]")]
Repeats = Annotated[
    str | None, typer.Option("--repeats", metavar="N", help="Studies of each tuner to compare.  [default: 1]")
]
Workers = Annotated[
    str | None, typer.Option("--workers", metavar="N", help="Trials at a time, with ray-tune.  [default: 1]")
]
Figure = Annotated[
    str | None,
    typer.Option("--figure", metavar="FILE", help="Write regret per trial and second as SVG.", show_default=False),
]
NoOptimum = Annotated[bool, typer.Option("--no-optimum", help="Do not search the space exactly first.")]


def tune(
    model: options.Model = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq: options.Seq = None,
    gbs: options.Gbs = None,
    tokens_per_step: options.TokensPerStep = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    pin: options.Pin = None,
    forbid: options.Forbid = None,
    with_: With = None,
    trials: Trials = None,
    storage: Storage = None,
    resume: Resume = False,
    compare: Compare = False,
    seed: Seed = None,
    repeats: Repeats = None,
    workers: Workers = None,
    figure: Figure = None,
    no_optimum: NoOptimum = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Let a tuner look for the best plan, and hold it against the exact optimum.

    \b
      meshwright tune llama-3-8b --gpus 8xH100 --with random --trials 50
      meshwright tune llama-3.1-70b --gpus 64xH100 --with optuna --storage sqlite:///trials.db --resume
      meshwright tune llama-3.1-70b --gpus 64xH100 --compare --figure regret.svg
    """
    gather = Gather()
    inputs = given(
        cluster=cluster,
        gpus=gpus,
        seq_len=seq,
        global_batch=gbs,
        tokens_per_step=tokens_per_step,
        dtype=dtype,
        optimizer=optimizer,
    )
    how = _how(gather, with_, trials, storage, resume, compare, seed, repeats, workers, figure, no_optimum)
    from meshwright.app.tune import tune as search

    gather.with_inputs(model, inputs)
    limits = given(pin=pin, forbid=forbid)
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    _answer(out, lambda told: search(model or "", on_trial=told, **inputs, **limits, **how), storage, figure)


def calculon_tune(
    app: Annotated[str | None, typer.Argument(metavar="APP", help="Application: a name or a JSON file.")] = None,
    system: Annotated[str | None, typer.Argument(metavar="SYS", help="System: a name or a JSON file.")] = None,
    procs: Annotated[str | None, typer.Option("--procs", metavar="N", help="Processors.", show_default=False)] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="B", help="Largest batch, in samples.", show_default=False)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="NAME", help="Datatype.  [default: float16]", show_default=False)
    ] = None,
    space: Annotated[
        str, typer.Option("--space", metavar="NAME", help="optimal-execution, or full.")
    ] = "optimal-execution",
    pin: Annotated[
        list[str] | None,
        typer.Option("--pin", metavar="KEY=V", help="Hold a key: tensor_par=8. Repeatable.", show_default=False),
    ] = None,
    fixed: Annotated[bool, typer.Option("--fixed", help="With the model's known errors corrected.")] = False,
    with_: With = None,
    trials: Trials = None,
    storage: Storage = None,
    resume: Resume = False,
    compare: Compare = False,
    seed: Seed = None,
    repeats: Repeats = None,
    workers: Workers = None,
    figure: Figure = None,
    no_optimum: NoOptimum = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Let a tuner look for the best execution of the Calculon model, and hold it against the exact optimum.

    \b
      meshwright calculon tune gpt3-13B a100_80g --procs 64 --batch 64 --with random --trials 50
    """
    gather = Gather()
    if app is None or system is None:
        gather.problem(missing("APP" if app is None else "SYS", "for example gpt3-175B a100_80g"))
    numbers: dict[str, Any] = {"procs": gather.whole("--procs", procs), "batch": gather.whole("--batch", batch)}
    for name, text in (("--procs", procs), ("--batch", batch)):
        if text is None:
            gather.problem(missing(name, f"for example {name} 512"))
    how = _how(gather, with_, trials, storage, resume, compare, seed, repeats, workers, figure, no_optimum)
    if gather.errors:
        from meshwright.calculon.reading import read_application, read_system

        if app is not None:
            gather.attempt(lambda: read_application(app))
        if system is not None:
            gather.attempt(lambda: read_system(system))
    gather.done()
    from meshwright.app.tune import calculon_tune as search

    limits = given(pin=pin, dtype=dtype)
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    _answer(
        out,
        lambda told: search(
            app or "",
            system or "",
            space=space,
            fixed=fixed,
            on_trial=told,
            **numbers,
            **limits,
            **how,
        ),
        storage,
        figure,
    )


def _how(
    gather: Gather,
    with_: list[str] | None,
    trials: str | None,
    storage: str | None,
    resume: bool,
    compare: bool,
    seed: str | None,
    repeats: str | None,
    workers: str | None,
    figure: str | None,
    no_optimum: bool,
) -> dict[str, Any]:
    """What `tune_options` takes; what is wrong is noted."""
    how: dict[str, Any] = given(
        tuners=with_,
        trials=gather.whole("--trials", trials),
        seed=gather.whole("--seed", seed, low=0),
        repeats=gather.whole("--repeats", repeats),
        workers=gather.whole("--workers", workers),
        storage=storage,
    )
    how |= {"resume": resume, "compare": compare, "optimum": not no_optimum}
    from meshwright.app.tune_options import tune_options
    from meshwright.formats.writing import check_file

    gather.attempt(lambda: tune_options(**how))
    if figure is not None:
        gather.attempt(lambda: check_file(figure))
        if no_optimum:
            gather.problem(missing("the optimum", "--figure draws regret: leave out --no-optimum"))
    return how


def _answer(
    out: Output, search: Callable[[Callable[[str, Trial], None]], TuneAnswer], storage: str | None, figure: str | None
) -> None:
    """Run, show and write; rows that were kept are named when it is interrupted."""
    kept = 0

    def told(label: str, trial: Trial) -> None:
        nonlocal kept
        kept += 1

    try:
        with out.progress("tuning"):
            found = search(told)
    except KeyboardInterrupt:
        if storage is not None:
            out.note(f"{kept} new trials are in {storage}: go on with --resume")
        raise
    if figure is not None:
        from meshwright.formats.writing import write_file

        write_file(figure, found.figure())
        out.note(f"regret drawn to {figure}")
    out.show(found.to_dict(), lambda _: found)
