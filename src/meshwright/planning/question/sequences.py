"""Lengths of sequences and tiles of a question: read, checked together, and said beside the answer."""

from __future__ import annotations

from meshwright.errors import Problem
from meshwright.estimate.sequences import filling_of
from meshwright.fields.gather import Gather
from meshwright.fields.job import JobFields
from meshwright.formats.cluster import Assumption
from meshwright.formats.lengths import lengths_of
from meshwright.specs.lengths import DYNAMIC, Lengths, Packing, mean_length
from meshwright.specs.workload import Workload
from meshwright.units import significant


def lengths_asked(job: JobFields) -> Lengths:
    """The distribution of lengths, none where all are alike.

    Args:
        job: the job as asked.

    Raises:
        InputError: every problem of the lengths, of their packing and of the context ranks, together.
    """
    gather = Gather()
    if job.lengths is None and job.packing is not None:
        why, fix = "without lengths every sequence is as long as its row", "say --lengths FILE, or leave --packing out"
        gather.problem(Problem(what="--packing without --lengths", why=why, fix=fix, field="packing"), "MW206")
    if job.dynamic_cp and (job.lengths is None or (job.packing or "pack") != "pack"):
        why = "only packed sequences of unequal lengths need different numbers of ranks"
        fix = "say --lengths FILE --packing pack, or leave --dynamic-cp out"
        given = "without --lengths" if job.lengths is None else f"with --packing {job.packing}"
        gather.problem(Problem(what=f"--dynamic-cp {given}", why=why, fix=fix, field="dynamic_cp"), "MW206")
    if job.packing is not None:
        gather.attempt(lambda: Packing.read(str(job.packing)))
    found = None if job.lengths is None else gather.attempt(lambda: lengths_of(job.lengths))
    gather.done()
    return found or ()


def sequence_notes(workload: Workload) -> list[Assumption]:
    """What an answer says of unequal sequences and of tiles.

    Args:
        workload: the step.
    """
    found: list[Assumption] = []
    filling = filling_of(workload, 1)
    if filling is not None:
        lengths = workload.sequence_lengths
        each = filling.sequences_per_step / workload.global_batch
        cut = f", {100 * filling.cut:.2g}% of them cut to a row" if filling.cut else ""
        held = f"rows of {workload.seq_len:,} hold {significant(each)} sequences"
        rows = {
            "concat": f"{held}, whose tokens all see each other",
            DYNAMIC: f"as many sequences a step as rows of {workload.seq_len:,} hold packed, {significant(each)} each",
        }.get(
            workload.packing,
            f"{held} and {significant(100 * filling.padding, 2)}% padding; sequences of a row do not see each other",
        )
        of_all = f"{mean_length(lengths):,.0f} tokens on average, at most {lengths[-1][0]:,}{cut}"
        value = f"{of_all}; {workload.packing}: {rows}"
        found.append(Assumption(name="lengths", value=value, basis="assumed"))
    if workload.dynamic_cp:
        value = "each sequence over as few ranks of its context group as hold it at seq_len / cp tokens a rank"
        found.append(Assumption(name="context ranks", value=value, basis="assumed"))
    for name, pieces in (("logits and loss", workload.loss_tiles), ("feed-forward parts", workload.mlp_tiles)):
        if pieces > 1:
            value = f"{name} in {pieces} pieces of a micro-batch's tokens, one after the other"
            found.append(Assumption(name="tiles", value=value, basis="assumed"))
    return found
