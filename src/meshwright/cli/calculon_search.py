"""`calculon search`, `calculon sweep` and `calculon what-if`: whole spaces of Calculon's model."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import options
from meshwright.cli.calculon import App, Fixed, System
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, given, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meshwright.app.calculon_sweep import Progress

Procs = Annotated[str | None, typer.Option("--procs", metavar="N", help="Processors.", show_default=False)]
Batch = Annotated[
    str | None, typer.Option("--batch", metavar="B", help="Largest batch, in samples.", show_default=False)
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", metavar="NAME", show_default=False,
        help="float8, float16, bfloat16 or float32.  [default: float16; all of the system with --space full]",
    ),
]  # fmt: skip
SpaceName = Annotated[
    str | None,
    typer.Option(
        "--space", metavar="NAME", show_default=False,
        help="optimal-execution (Calculon's own) or full.  [default: optimal-execution]",
    ),
]  # fmt: skip
NoTpOverlap = Annotated[bool, typer.Option("--no-tp-overlap", help="No overlap of tensor-parallel traffic.")]
NoDpOverlap = Annotated[bool, typer.Option("--no-dp-overlap", help="No overlap of data-parallel traffic.")]
Top = Annotated[
    str | None, typer.Option("--top", metavar="K", help="How many of the best.  [default: 10]", show_default=False)
]
Pin = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="KEY=V", help="Hold a key: tensor_par=4,8. Repeatable.", show_default=False),
]
Stop = Annotated[
    bool, typer.Option("--stop-microbatch", "-m", help="Leave out micro-batches beyond one with which nothing fits.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="[ADDRESS]", show_default=False,
        help="Search on a Ray cluster: host:port; alone, the cluster of this machine or RAY_ADDRESS; local starts one.",
    ),
]  # fmt: skip


def search(
    app: App = None,
    system: System = None,
    procs: Procs = None,
    batch: Batch = None,
    dtype: Dtype = None,
    space: SpaceName = None,
    no_tp_overlap: NoTpOverlap = False,
    no_dp_overlap: NoDpOverlap = False,
    top: Top = None,
    pin: Pin = None,
    stop_microbatch: Stop = False,
    ray: Ray = None,
    fixed: Fixed = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """The best executions of a whole space, its front of time and memory, and the proof.

    \b
      meshwright calculon search gpt3-175B a100_80g --procs 512 --batch 512
      meshwright calculon search megatron-1T h100_80g_nvl8 --procs 4096 --batch 4096 --space full --json
    """
    gather = Gather()
    _need(gather, (("APP", app), ("SYS", system), ("--procs", procs), ("--batch", batch)), "search")
    asked = given(
        procs=gather.whole("--procs", procs),
        batch=gather.whole("--batch", batch),
        top=gather.whole("--top", top),
        dtype=dtype,
        space=space,
        pin=pin,
        ray=ray,
    )
    _done(gather, [app or ""], [system or ""], space=space, dtype=dtype, pin=pin)
    from meshwright.app.calculon_search import calculon_search

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with out.progress("searching"):
        found = calculon_search(
            app or "",
            system or "",
            **asked,
            tp_overlap=not no_tp_overlap,
            dp_overlap=not no_dp_overlap,
            stop_microbatch=stop_microbatch,
            fixed=fixed,
        )
    out.show(found.to_dict(), lambda _: found)


def sweep(
    apps: Annotated[
        str | None, typer.Argument(metavar="APPS", help="Applications: gpt3-175B,megatron-1T.", show_default=False)
    ] = None,
    systems: Annotated[
        str | None, typer.Argument(metavar="SYSTEMS", help="Systems: a100_80g,h100_80g_nvl8.", show_default=False)
    ] = None,
    procs: Annotated[
        str | None, typer.Option("--procs", metavar="N,N", help="Processors: 512,1024.", show_default=False)
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="B,B", help="Largest batches: 512,3072.", show_default=False)
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The Parquet file.", show_default=False)
    ] = None,
    dtype: Dtype = None,
    space: SpaceName = None,
    no_tp_overlap: NoTpOverlap = False,
    no_dp_overlap: NoDpOverlap = False,
    top: Top = None,
    pin: Pin = None,
    stop_microbatch: Stop = False,
    every: Annotated[bool, typer.Option("--all", help="Keep all accepted executions, not only the best.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the file that is there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over the file that is there.")] = False,
    ray: Ray = None,
    fixed: Fixed = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Search applications x systems x processors x batches; stream the best and the front of each to Parquet.

    \b
      meshwright calculon sweep gpt3-175B,megatron-1T a100_80g,h100_80g_nvl8 --procs 512,1024 --batch 1024 -o s.parquet
      meshwright calculon sweep gpt3-175B a100_80g --procs 512,1024 --batch 1024 -o s.parquet --resume --ray
    """
    gather = Gather()
    needed = (("APPS", apps), ("SYSTEMS", systems), ("--procs", procs), ("--batch", batch), ("--output", output))
    _need(gather, needed, "sweep")
    counts = [gather.whole("--procs", word) for word in words(procs)]
    sizes = [gather.whole("--batch", word) for word in words(batch)]
    asked = given(top=gather.whole("--top", top), dtype=dtype, space=space, pin=pin, ray=ray)
    _done(gather, words(apps), words(systems), space=space, dtype=dtype, pin=pin)
    from meshwright.app.calculon_sweep import calculon_sweep

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with told(out) as tell:
        found = calculon_sweep(
            words(apps),
            words(systems),
            procs=[count for count in counts if count is not None],
            batches=[size for size in sizes if size is not None],
            output=output or "",
            **asked,
            tp_overlap=not no_tp_overlap,
            dp_overlap=not no_dp_overlap,
            stop_microbatch=stop_microbatch,
            every=every,
            resume=resume,
            force=force,
            fixed=fixed,
            told=tell,
        )
    out.show(found.to_dict(), lambda _: found)


def what_if(
    app: App = None,
    system: System = None,
    procs: Procs = None,
    batch: Batch = None,
    factors: Annotated[
        str | None, typer.Option("--factors", metavar="X,X", help="Change each number by.  [default: 0.5,2]",
                                 show_default=False)
    ] = None,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Also write the tornado plot there.", show_default=False)
    ] = None,
    dtype: Dtype = None,
    space: SpaceName = None,
    no_tp_overlap: NoTpOverlap = False,
    no_dp_overlap: NoDpOverlap = False,
    pin: Pin = None,
    fixed: Fixed = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:  # fmt: skip
    """What each number of the system is worth: the best execution, searched anew for every change.

    \b
      meshwright calculon what-if gpt3-175B a100_80g --procs 512 --batch 512 --svg tornado.svg
      meshwright calculon what-if gpt3-175B a100_80g --procs 512 --batch 512 --factors 0.9,1.1
    """
    gather = Gather()
    _need(gather, (("APP", app), ("SYS", system), ("--procs", procs), ("--batch", batch)), "what-if")
    numbers = [gather.number("--factors", word) for word in words(factors)]
    asked = given(
        procs=gather.whole("--procs", procs),
        batch=gather.whole("--batch", batch),
        factors=[number for number in numbers if number is not None],
        dtype=dtype,
        space=space,
        pin=pin,
    )
    if svg is not None:
        from meshwright.formats.writing import check_file

        gather.attempt(lambda: check_file(svg))
    _done(gather, [app or ""], [system or ""], space=space, dtype=dtype, pin=pin)
    from meshwright.app.calculon_whatif import calculon_what_if
    from meshwright.formats.writing import write_file

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with line(out) as show:
        found = calculon_what_if(
            app or "",
            system or "",
            **asked,
            tp_overlap=not no_tp_overlap,
            dp_overlap=not no_dp_overlap,
            fixed=fixed,
            progress=lambda done, of: show(f"search {done} of {of}"),
        )
    if svg is not None:
        write_file(svg, found.svg())
        out.note(f"the plot written to {svg}")
    out.show(found.to_dict(), lambda _: found)


def _need(gather: Gather, values: tuple[tuple[str, str | None], ...], verb: str) -> None:
    for name, value in values:
        if value is None:
            gather.problem(missing(name, f"`meshwright calculon {verb} --help` has examples"))


def _done(
    gather: Gather,
    apps: list[str],
    systems: list[str],
    *,
    space: str | None,
    dtype: str | None,
    pin: list[str] | None,
) -> None:
    """Raise what is wrong so far, together with what is wrong with the inputs that are named and the space."""
    if gather.errors:
        from meshwright.app.calculon_space import check_inputs

        named = [name for name in apps if name], [name for name in systems if name]
        gather.attempt(lambda: check_inputs(*named, space=space, dtype=dtype, pin=pin or ()))
    gather.done()


def words(text: str | None) -> list[str]:
    """A comma list."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


@contextmanager
def line(out: Output) -> Iterator[Callable[[str], None]]:
    """One line on stderr, written over again and again, gone afterwards; none where stderr is no terminal."""
    shown = not out.quiet and sys.stderr.isatty()

    def show(text: str) -> None:
        if shown:
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


@contextmanager
def told(out: Output) -> Iterator[Callable[[Progress], None]]:
    """Designs done, rate and time to go, on the line of `line`."""
    with line(out) as show:
        show("sweeping ...")

        def tell(progress: Progress) -> None:
            left = progress.left_s
            words = f"sweep: {progress.designs:,} of {progress.of:,} designs, {progress.rate / 1e6:,.1f} M executions/s"
            show(f"{words}, {left:,.0f} s to go" if left is not None else words)

        yield tell
