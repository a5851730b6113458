"""How each verb's answer reaches the terminal, where it is not its own text or JSON alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any

from meshwright.cli.output import Output, print_error, write
from meshwright.records import as_json

if TYPE_CHECKING:
    from meshwright.app.studies.sweeping import Progress
    from meshwright.errors import MeshwrightError

VIOLATIONS = 5
VIEWING = "open it at https://pytorch.org/memory_viz, or with python -m torch.cuda._memory_viz trace_plot"
DRAWN = "figure written to {path}"
LOADING = "open it at https://ui.perfetto.dev or chrome://tracing"


def print_shown(out: Output, request: Any, answer: Any) -> int | None:
    """The answer's own text or JSON, and its figure where one is named."""
    _picture(out, request, answer)
    out.show(answer.to_dict(), lambda _: answer)
    return None


def plans(out: Output, request: Any, answer: Any) -> None:
    """Plans, written to a file too where one is named."""
    # Plan files within it, with their hashes, take longer than the text.
    document = answer.to_dict() if out.as_json or request.output is not None else {}
    if request.output is not None:
        from meshwright.formats.writing import write_file

        plan_set = document.get("plan_set", document)
        write_file(request.output, as_json(plan_set))
        count = len(plan_set.get("plans", ()))
        out.note(f"{count} plan{'s' if count != 1 else ''} written to {request.output}")
    if getattr(request, "pareto", False):
        _figure(out, request.svg, answer.front_svg, DRAWN)
    else:
        _picture(out, request, answer)
    out.show(document, lambda _: answer.text if request.given & {"replan_from"} else answer)


def print_searched(out: Output, request: Any, use: Callable[..., Any]) -> None:
    """How far the search is and the quickest plan so far on one line of stderr, then the plans."""
    from meshwright.search.watching import SearchProgress, watched
    from meshwright.units import count, percent, seconds

    with _line(out) as show:
        show("searching ...")
        begun_s = monotonic()

        def tell(progress: SearchProgress) -> None:
            best = "" if progress.best_s is None else f", quickest so far {seconds(progress.best_s)}: {progress.best}"
            left = progress.left_s or 0.0
            ahead = f", about {seconds(left)} more" if left > 1 else ""
            rate = f"{count(progress.decided / max(monotonic() - begun_s, 1e-3))} a second"
            decided = f"{count(progress.decided)} of {count(progress.space)} plans decided"
            line = f"searching: {percent(progress.share)}, {decided}, {rate}{ahead}{best}"
            show(line[: shutil.get_terminal_size().columns - 1])

        with watched(tell):
            answer = use()
    plans(out, request, answer)


def checked(out: Output, request: Any, answer: Any) -> int:
    """What `check` found, and its exit code."""
    if request.report is not None:
        _print_findings(request.report, answer.to_dict(), "" if request.source is None else str(request.source))
        return int(answer.exit_code)
    print_shown(out, request, answer)
    if request.output is not None:
        written = answer.fix is not None and answer.fix.text
        known = answer.better is not None and answer.fix is None
        why = (
            "files of this form are read and not edited: `export` writes the plan"
            if known
            else "no edit makes it better"
        )
        out.note(f"written to {request.output}" if written else f"nothing was written: {why}")
    return int(answer.exit_code)


def _print_findings(form: str, document: Mapping[str, Any], source: str) -> None:
    """Findings as a pipeline takes them; nothing in a form that there is not."""
    from meshwright import __version__
    from meshwright.report.findings import github, junit, sarif

    forms: dict[str, Callable[[Any, str], str]] = {
        "sarif": partial(sarif, version=__version__),
        "junit": junit,
        "github": github,
    }
    if form in forms:
        write(forms[form](document, source.replace("\\", "/")))


def print_error_found(error: MeshwrightError, words: Sequence[str]) -> None:
    """An error of `check --report` as a report, which a pipeline reads whatever the exit code.

    Args:
        error: the error that ended the command.
        words: the words of the command.
    """
    after = dict(pairwise([*words, ""]))
    form = next((word.partition("=")[2] for word in words if word.startswith("--report=")), after.get("--report", ""))
    found = [
        {"code": error.code, "what": one.what, "why": one.why, "fix": one.fix, "place": ""} for one in error.problems
    ]
    document = {"violations": found, "warnings": [], "dominated_by": None, "title": "check", "text": str(error)}
    _print_findings(form, document, next((word for word in words[1:] if os.path.isfile(word)), ""))


def print_compared(out: Output, request: Any, answer: Any) -> None:
    """Differences, and one step of each plan where it is asked for."""
    print_shown(out, request, answer)
    if request.timeline and not out.as_json:
        out.print(answer.timeline())


def print_traced(out: Output, request: Any, answer: Any) -> None:
    """Files written by name; the text where none is, or where it is asked for."""
    out.warn(answer.warnings)
    if request.output is not None:
        out.note(f"trace written to {request.output}: {LOADING}")
    if request.svg is not None:
        out.note(f"figure written to {request.svg}")
    if request.memory_snapshot is not None:
        out.note(f"memory written to {request.memory_snapshot}: {VIEWING}")
    written = (request.output, request.svg, request.memory_snapshot)
    if not out.as_json and not request.text and any(path is not None for path in written):
        out.print(answer.title)
    else:
        out.show(answer.to_dict(), lambda _: answer)


def print_reported(out: Output, request: Any, answer: Any) -> None:
    """The file that was written, or the text itself."""
    if answer.path is not None:
        out.note(
            f"report written to {answer.path}: open it in a browser"
            if answer.format == "html"
            else f"written to {answer.path}"
        )
    if out.as_json:
        print_shown(out, request, answer)
    elif answer.path is None:
        write(answer.text)


def served_page(out: Output, request: Any, use: Callable[..., Any]) -> None:
    """The page's address, and the page until it is interrupted."""
    from meshwright.service.local import serve_page

    def tell(url: str) -> None:
        document = {"schema": "meshwright.web/1", "url": url}
        out.show(document, lambda _: url)
        out.note("this machine alone can open it; Ctrl+C ends it")

    with contextlib.suppress(KeyboardInterrupt):
        serve_page(request, tell, out.note)


def served(out: Output, request: Any, use: Callable[..., Any]) -> None:
    """The address of a service, and the service until it is interrupted."""

    def tell(url: str) -> None:
        out.show({"schema": "meshwright.serve/1", "url": url}, lambda _: url)
        out.note("Ctrl+C ends it")

    use(tell=tell)


def exported(out: Output, request: Any, answer: Any) -> None:
    """The files that were written, and how to start them."""
    out.warn(answer.warnings)
    title = f"{answer.name or 'the plan'} for {answer.target}, in {answer.directory}:"
    files = [f"  {name}  {len(text.encode('utf-8')):,} bytes" for name, text in answer.files]
    notes = [f"note: {note}" for note in answer.notes]
    text = "\n".join([title, *files, *notes, f"start it in that folder: {answer.start}"])
    out.show(answer.to_dict(), lambda _: text)


def scheduled(out: Output, request: Any, answer: Any) -> None:
    """Schedules drawn, as text and as the files that are asked for."""
    if request.csv is not None:
        answer.write_csv(request.csv)
        out.note(f"order written to {request.csv}")
    if not request.listed:
        _figure(out, request.svg, lambda: answer.svg(request.window), DRAWN)
    out.show(answer.to_dict(), lambda _: answer)


def validated(out: Output, request: Any, answer: Any) -> int:
    """Scores; exit 5 where the error is above the limit."""
    from meshwright.report.score_table import score_table

    if out.as_json:
        out.show(answer.to_dict(), lambda _: "")
    else:
        out.print(*(score_table(metric, scores) for metric, scores in answer.scores))
    if request.output is not None:
        out.note(f"{answer.predicted} of {len(answer.predictions)} rows predicted, written to {request.output}")
    return 0


def predictions(out: Output, request: Any, use: Callable[..., Any]) -> int | None:
    """Scores, also where the error is above the limit or rows are broken: then the error follows."""
    from meshwright.app.validate import AboveLimit, BrokenRows

    try:
        with out.progress("predicting"):
            return validated(out, request, use())
    except (AboveLimit, BrokenRows) as failed:
        validated(out, request, failed.result)
        return print_error(failed, as_json=False)


def calibrated(out: Output, request: Any, answer: Any) -> None:
    """Numbers fitted to runs, or moved by one log."""
    if request.from_log is not None:
        print_shown(out, request, answer)
        if request.output is not None:
            out.note(f"written to {request.output}; --calibration {request.output} predicts with it")
        return
    from meshwright.report.calibration_table import calibration_tables

    if out.as_json:
        out.show(answer.to_dict(), lambda _: "")
    else:
        out.print(*calibration_tables(answer.record))
    if request.output is not None:
        fitted = f"{len(answer.record['numbers'])} numbers fitted to {answer.record['runs']} runs"
        out.note(f"{fitted}, written to {request.output}")


def profiled(out: Output, request: Any, answer: Any) -> None:
    """A device's numbers, and how to use them."""
    print_shown(out, request, answer)
    if request.output is not None:
        use = f"`meshwright gpus add {request.output}` puts {answer.device.name} into your library"
        out.note(f"written to {request.output}; {use}")


def training(out: Output, request: Any, use: Callable[..., Any]) -> None:
    """Each step as it is done, then the whole run."""
    from meshwright.report.run_table import step_line

    answer = use(
        on_step=lambda done: None if out.as_json else out.print(step_line(done.step, done.loss, done.seconds)),
        on_recovery=lambda said: out.warn([said]),
    )
    if request.trace is not None:
        out.note(f"trace written to {request.trace}: {LOADING}")
    if request.profile is not None:
        out.note(f"profile written to {request.profile}: tensorboard --logdir {request.profile}")
    print_shown(out, request, answer)


def verified(out: Output, request: Any, answer: Any) -> int:
    """Differences; exit 5 where they are above the tolerance."""
    print_shown(out, request, answer)
    return 0 if answer.ok else VIOLATIONS


def cluster(out: Output, request: Any, answer: Any) -> None:
    """A cluster as a card, or as a file to edit."""
    _picture(out, request, answer)
    if request.toml and not out.as_json:
        write(answer.to_toml())
        return
    out.show(answer.to_dict() | ({"toml": answer.to_toml()} if request.toml else {}), lambda _: answer)


def examined(out: Output, request: Any, answer: Any) -> int:
    """What is installed; exit 1 where planning does not work."""
    print_shown(out, request, answer)
    return 0 if answer.ok else 1


def tuned(out: Output, request: Any, use: Callable[..., Any]) -> None:
    """Studies; rows that were kept are named when it is interrupted."""
    kept: list[object] = []
    study = request.study
    try:
        with out.progress("tuning"):
            answer = use(on_trial=lambda label, trial: kept.append(label))
    except KeyboardInterrupt:
        if study.storage is not None:
            out.note(f"{len(kept)} new trials are in {study.storage}: go on with --resume")
        raise
    _figure(out, study.figure, answer.figure, "regret drawn to {path}")
    print_shown(out, request, answer)


def executions(out: Output, request: Any, use: Callable[..., Any]) -> None:
    """Statistics of one execution, or a JSON line for each row of a file as the rows come."""
    if request.batch is None:
        print_shown(out, request, use())
        return
    import json

    from meshwright.calculon.row_file import calculon_batch, row_lines

    with row_lines(request.batch) as rows:
        for answer in calculon_batch(rows, fixed=request.fixed):
            write(json.dumps(answer, allow_nan=False) + "\n")


def swept(out: Output, request: Any, use: Callable[..., Any]) -> None:
    """Designs done, rate and time to go on one line of stderr, then the answer."""
    with _line(out) as show:
        show("sweeping ...")

        def tell(progress: Progress) -> None:
            rate = f"{progress.rate / 1e6:,.2f} M {progress.noun}/s"
            words = f"sweep: {progress.designs:,} of {progress.of:,} designs, {rate}"
            show(words if progress.left_s is None else f"{words}, {progress.left_s:,.0f} s to go")

        answer = use(on_progress=tell)
    print_shown(out, request, answer)


def changed(out: Output, request: Any, use: Callable[..., Any]) -> None:
    """What each number is worth, and its plot."""
    with _line(out) as show:
        answer = use(progress=lambda done, of: show(f"search {done} of {of}"))
    print_shown(out, request, answer)


def _picture(out: Output, request: Any, answer: Any) -> None:
    """The figure of an answer, where the verb has one and it is not written yet."""
    _figure(out, getattr(request, "svg", None), lambda: answer.svg(), DRAWN)


def _figure(out: Output, path: str | None, draw: Callable[[], str], note: str) -> None:
    if path is not None:
        from meshwright.formats.figure import write_figure

        write_figure(path, draw())
        out.note(note.format(path=path))


@contextmanager
def _line(out: Output) -> Iterator[Callable[[str], None]]:
    """One line on stderr, written over again and again, gone afterwards; none where stderr is no terminal."""
    terminal = not out.quiet and sys.stderr.isatty()

    def show(text: str) -> None:
        if terminal:
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
