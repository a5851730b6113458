"""`plan --replan-from`: the best plans after a cluster lost or gained devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.cli.output import Output
from meshwright.cli.values import Gather, given, missing
from meshwright.errors import Problem
from meshwright.records import as_json


def replan_after(
    gather: Gather,
    out: Output,
    source: str | None,
    lost: str | None,
    added: str | None,
    top: str,
    pin: Sequence[str] | None,
    forbid: Sequence[str] | None,
    output: str | None,
    others: Mapping[str, str | None],
) -> None:
    """Plan again and print; the plan file says model, cluster and workload, so that `others` must not."""
    count = gather.whole("--top", top, high=1000)
    if source is None:
        gather.problem(missing("--replan-from", "name the plan file of the job: --replan-from plans.json#1"))
    for name in (name for name, value in others.items() if value is not None):
        why = "the plan file says what is trained, and the change what it is trained on"
        gather.problem(Problem(what=f"{name} with --replan-from", why=why, fix=f"leave {name} out", field=name))
    if source is not None and lost is None and added is None:
        gather.problem(missing("--lost or --added", "say what changed: --lost 8xH100, --lost 16-23, --added 8xH100"))
    from meshwright.app.replan import replan
    from meshwright.formats.writing import check_file, write_file

    if output is not None:
        gather.attempt(lambda: check_file(output))
    gather.done()
    with out.progress("searching"):
        found = replan(source or "", lost=lost, added=added, top=count or 1, **given(pin=pin, forbid=forbid))
    document = found.to_dict()
    if output is not None:
        write_file(output, as_json(document["plan_set"]))
        out.note(f"{len(found.moves)} plans written to {output}")
    out.show(document, lambda _: found.text)
