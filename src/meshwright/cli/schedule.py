"""`schedule`: one pipeline schedule drawn, priced and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, missing
from meshwright.errors import Problem

if TYPE_CHECKING:
    from meshwright.app.schedule import ScheduleRun
    from meshwright.schedules import Timeline

Seconds = "in seconds per full worker share"


def schedule(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A schedule, several as 1f1b,zb-h1 on one time axis, `list` for all, or `best` for the fastest.",
            show_default=False,
        ),
    ] = None,
    p: Annotated[str | None, typer.Option("--p", metavar="N", help="Workers.", show_default=False)] = None,
    m: Annotated[str | None, typer.Option("--m", metavar="N", help="Micro-batches.", show_default=False)] = None,
    v: Annotated[
        str | None,
        typer.Option("--v", metavar="N", help="Chunks per worker.  [default: the fewest allowed]", show_default=False),
    ] = None,
    tf: Annotated[str, typer.Option("--tf", metavar="S", help=f"Forward, {Seconds}.")] = "1",
    ti: Annotated[str, typer.Option("--ti", metavar="S", help="Input gradient.")] = "1",
    tw: Annotated[str, typer.Option("--tw", metavar="S", help="Weight gradient.")] = "1",
    tr: Annotated[str, typer.Option("--tr", metavar="S", help="Recomputation.")] = "0",
    tc: Annotated[str, typer.Option("--tc", metavar="S", help="Latency of a transfer, which occupies nobody.")] = "0",
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="N", help="Micro-batches per group (interleaved).", show_default=False),
    ] = None,
    segments: Annotated[
        str | None,
        typer.Option("--segments", metavar="N", help="Segments of a sequence (seq1f1b).", show_default=False),
    ] = None,
    extra: Annotated[
        str | None, typer.Option("--extra", metavar="N", help="Forwards in advance (avgpipe).", show_default=False)
    ] = None,
    waves: Annotated[
        str | None, typer.Option("--waves", metavar="N", help="Waves (hanayo).", show_default=False)
    ] = None,
    pairs: Annotated[
        str | None, typer.Option("--pairs", metavar="N", help="Pairs of pipelines (chimera).", show_default=False)
    ] = None,
    inject: Annotated[
        str | None, typer.Option("--inject", metavar="N", help="Micro-batches injected (mixpipe).", show_default=False)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Squeezed blocks, not reordered (v-half, v-min).")] = False,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Backwards last micro-batch first, as in PyTorch (breadth-first).")
    ] = False,
    warmup: Annotated[
        str | None, typer.Option("--warmup", metavar="pa|pb", help="Warm-up policy (dapple).", show_default=False)
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(
            "--times", metavar="FILE", help="CSV or JSON of stage times and bytes (best).", show_default=False
        ),
    ] = None,
    room: Annotated[
        str | None,
        typer.Option("--room", metavar="N", help="Micro-batches that fit each worker (best).", show_default=False),
    ] = None,
    allow: Annotated[
        str | None,
        typer.Option("--allow", metavar="NAME,NAME", help="Schedules to choose from (best).", show_default=False),
    ] = None,
    no_split: Annotated[
        bool, typer.Option("--no-split", help="Whole backwards only in list scheduling (best).")
    ] = False,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Write the drawing as a figure.", show_default=False)
    ] = None,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write it as PyTorch loads it.", show_default=False)
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE", help="Read such a CSV instead of NAME, --p and --m.", show_default=False
        ),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Draw, price and check one pipeline schedule with equal stages.

    \b
      meshwright schedule list
      meshwright schedule 1f1b --p 4 --m 8
      meshwright schedule interleaved --p 4 --m 8 --v 2 --tf 1 --ti 1 --tw 1 --tc 0.1
      meshwright schedule 1f1b,zb-h1 --p 4 --m 8 --svg both.svg
      meshwright schedule best --m 16 --times stages.csv
      meshwright schedule zb-h2 --p 4 --m 8 --csv order.csv
      meshwright schedule --from order.csv
    """
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    gather = Gather()
    names = [one.strip() for one in (name or "").split(",") if one.strip()]
    if source is not None:
        for option, value in (("NAME", name), ("--p", p), ("--m", m), ("--v", v)):
            if value is not None:
                why = "the file of --from says the order of every worker"
                gather.problem(Problem(what=f"{option} is given", why=why, fix="leave it out", field=option))
    elif not names:
        gather.problem(missing("NAME", "name a schedule; `meshwright schedule list` shows all"))
    if name != "list" and source is None:
        for option, value in (("--p", p), ("--m", m)):
            if value is None and not (option == "--p" and times is not None):
                gather.problem(missing(option, f"for example {option} 8"))
    counts = {option: gather.whole(f"--{option}", value) for option, value in (("p", p), ("m", m), ("v", v))}
    said = {"group": group, "segments": segments, "extra": extra, "waves": waves, "pairs": pairs, "inject": inject}
    parameters = {
        option: count for option, value in said.items() if (count := gather.whole(f"--{option}", value)) is not None
    }
    texts = (("tf", tf), ("ti", ti), ("tw", tw), ("tr", tr), ("tc", tc))
    seconds = {option: gather.number(f"--{option}", text, zero=True) or 0.0 for option, text in texts}
    fits = gather.number("--room", room)
    if name != "best":
        said_best = (("--times", times), ("--room", room), ("--allow", allow), ("--no-split", no_split or None))
        for option, text in said_best:
            if text is not None:
                why = "only `schedule best` looks for an order"
                gather.problem(Problem(what=f"{option} is given", why=why, fix="leave it out", field=option))
    own: dict[str, int | str | bool] = {**parameters, **({"raw": True} if raw else {})}
    own |= {**({"reverse": True} if reverse else {}), **({} if warmup is None else {"warmup": warmup})}
    if name in ("best", "list") or source is not None:
        for option in own:
            why = "it belongs to schedules that are named"
            gather.problem(Problem(what=f"--{option} is given", why=why, fix="leave it out", field=f"--{option}"))
    if csv is not None and (name in ("list", "best") or len(names) > 1):
        gather.problem(
            Problem(what="--csv is given", why="it writes one named schedule", fix="name one", field="--csv")
        )
    for path in (svg, csv):
        if path is not None:
            from meshwright.formats.writing import check_file

            gather.attempt(partial(check_file, path))
    gather.done()
    if name == "list":
        from meshwright.app.schedule import list_schedules
        from meshwright.report.schedule_drawing import schedule_list

        out.show(list_schedules().to_dict(), lambda document: schedule_list(document["schedules"]))
        return
    durations = {
        "forward_s": seconds["tf"],
        "input_s": seconds["ti"],
        "weight_s": seconds["tw"],
        "recompute_s": seconds["tr"],
        "transfer_s": seconds["tc"],
    }
    if source is not None:
        from meshwright.app.schedule_file import read_schedule_csv
        from meshwright.report.schedule_drawing import schedule_page

        equal_times = {option: durations[option] for option in durations if option != "recompute_s"}
        run = read_schedule_csv(source, **equal_times)
        _write_csv(out, csv, run)
        _write_figure(out, svg, [run.to_dict()], [run.timeline])
        out.show(run.to_dict(), lambda document: schedule_page(document, run.timeline))
        return
    assert name is not None
    if name == "best":
        from meshwright.app.schedule_best import run_best_schedule
        from meshwright.report.schedule_best import best_schedule_page

        best = run_best_schedule(
            counts["p"],
            counts["m"] or 1,
            counts["v"],
            **durations,
            times_file=times,
            room=fits,
            allow=None if allow is None else [one.strip() for one in allow.split(",")],
            split=not no_split,
        )
        _write_figure(out, svg, [best.to_dict()], [best.timeline])
        out.show(best.to_dict(), lambda document: best_schedule_page(document, best.timeline))
        return
    if "," in name:
        from meshwright.app.schedule_stack import run_schedules
        from meshwright.report.schedule_drawing import stack_page

        stack = run_schedules(names, counts["p"] or 1, counts["m"] or 1, counts["v"], parameters=own, **durations)
        timelines = [run.timeline for run in stack.runs]
        _write_figure(out, svg, [run.to_dict() for run in stack.runs], timelines)
        out.show(stack.to_dict(), lambda document: stack_page(document["schedules"], timelines))
        return
    from meshwright.app.schedule import run_schedule
    from meshwright.report.schedule_drawing import schedule_page

    run = run_schedule(name, counts["p"] or 1, counts["m"] or 1, counts["v"], **durations, parameters=own)
    _write_csv(out, csv, run)
    _write_figure(out, svg, [run.to_dict()], [run.timeline])
    out.show(run.to_dict(), lambda document: schedule_page(document, run.timeline))


def _write_csv(out: Output, path: str | None, run: ScheduleRun) -> None:
    """The order as PyTorch loads it, where it is asked for."""
    if path is None:
        return
    from meshwright.app.schedule_file import write_schedule_csv

    write_schedule_csv(run.schedule, run.timeline.table, path)
    out.note(f"order written to {path}")


def _write_figure(
    out: Output, path: str | None, runs: Sequence[Mapping[str, Any]], timelines: Sequence[Timeline]
) -> None:
    """The drawing of schedules as a figure, where one is asked for."""
    if path is None:
        return
    from meshwright.formats.writing import write_file
    from meshwright.report.picture import schedule_picture
    from meshwright.report.timeline_svg import timeline_svg

    pictures = [schedule_picture(run, timeline) for run, timeline in zip(runs, timelines, strict=True)]
    write_file(path, timeline_svg(pictures))
    out.note(f"figure written to {path}")
