"""Shorter sequences, as many tokens a step, by themselves or beside what else saves memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.planning.one_kind import SpaceFor
from meshwright.planning.repair.job_repair import Repairs, best_plan, job_repair
from meshwright.planning.repair.of_tuning import lighter
from meshwright.planning.repair.of_unsloth import by_unsloth
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

SHORTEST_SEQ = 512
TEXT = "shorter sequences, the same tokens per step"


def shorter(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """The longest of shorter sequences that fit."""
    for option, step in _halved(workload):
        found = best_plan(model, cluster, step, space_for)
        if found:
            yield job_repair(option, TEXT, found, changes_training=True)
            return


def shorter_by_unsloth(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """Shorter sequences under Unsloth, for cards that hold little beside the weights; of what was asked for, else of
    adapters beside weights in fewer bits."""
    others = ((option, tuned) for option, _, tuned, _ in lighter(model, workload, software_given=False))
    for trained, tuned in (("", model), *others):
        for option, step in _halved(workload):
            found = next(by_unsloth(tuned, cluster, step, space_for), None)
            if found is not None:
                said = " ".join(word for word in (found.option, trained, option) if word)
                yield replace(found, option=said, text=f"{TEXT}, {found.text}", changes_training=True)
                return


def _halved(workload: Workload) -> Iterator[tuple[str, Workload]]:
    """Sequences of half the length, of a quarter and so on, with what says them; given lengths are as they are."""
    seq, batch = workload.seq_len, workload.global_batch
    while not workload.sequence_lengths and seq % 2 == 0 and seq // 2 >= SHORTEST_SEQ:
        seq, batch = seq // 2, batch * 2
        yield f"--seq {seq} --gbs {batch}", replace(workload, seq_len=seq, global_batch=batch)
