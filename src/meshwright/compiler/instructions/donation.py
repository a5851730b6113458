"""Buffers whose memory the results of their last reader take: sums of gradients, and state that is not needed again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from jax.extend import core

from meshwright.compiler.instructions import Buffer, Feed, Instruction, Op, StepProgram, StepResult
from meshwright.compiler.instructions.lists import ListBuilder, with_frees


def program_of(
    out: ListBuilder, feeds: Sequence[Feed], outcomes: Sequence[StepResult], given: Collection[int] = ()
) -> StepProgram:
    """The program of finished lists: buffers are freed behind their last use, or donated to it.

    Args:
        out: the lists, their executables and buffers.
        feeds: inputs of the step.
        outcomes: the results of the step, whose buffers are kept.
        given: inputs that the caller gives away.
    """
    kept = {outcome.buffer for outcome in outcomes}
    lists = [with_frees(instructions, kept) for instructions in out.lists]
    taken = set(given) - {outcome.input for outcome in outcomes}
    return StepProgram(
        lists=tuple(map(tuple, with_donations(lists, out.executables, out.buffers, feeds, taken))),
        executables=out.executables,
        buffers=tuple(out.buffers),
        feeds=tuple(feeds),
        outcomes=tuple(outcomes),
    )


def with_donations(
    lists: Sequence[Sequence[Instruction]],
    executables: Mapping[str, core.ClosedJaxpr],
    buffers: Sequence[Buffer],
    feeds: Sequence[Feed],
    given: Collection[int] = (),
) -> list[list[Instruction]]:
    """The lists with donations in place of some of their FREEs.

    A buffer is donated to its last reader if a result has its shape, type and sharding, and if nothing else may be the
    same memory: not what was sent or received, and not what an executable hands through.

    Args:
        lists: the instruction lists, with FREE behind the last use of each buffer.
        executables: the executables that they run.
        buffers: the buffers of the program.
        feeds: inputs of the step.
        given: inputs that the caller gives away.
    """
    shared, own = set[int](), set[int]()
    for one in (one for instructions in lists for one in instructions):
        if one.op is Op.RUN:
            jaxpr = executables[one.executable or ""].jaxpr
            inputs, times = set(jaxpr.invars), Counter(var for var in jaxpr.outvars if isinstance(var, core.Var))
            for buffer, var in zip(one.writes, jaxpr.outvars, strict=True):
                if isinstance(var, core.Var) and var not in inputs and times[var] == 1:
                    own.add(buffer)
            shared |= {buffer for buffer, var in zip(one.reads, jaxpr.invars, strict=True) if var in times}
        elif one.op is not Op.FREE:
            shared |= {*one.reads, *one.writes}
    times_fed = Counter(feed.input for feed in feeds)
    own |= {
        feed.buffer for feed in feeds if feed.micro_batch is None and feed.input in given and times_fed[feed.input] == 1
    }
    fed = {feed.buffer for feed in feeds}
    return [_donating(instructions, buffers, own - shared, fed) for instructions in lists]


def _donating(
    instructions: Sequence[Instruction], buffers: Sequence[Buffer], may: set[int], fed: set[int]
) -> list[Instruction]:
    """State before sums: a result has the memory of what it replaces, and nothing needs to be copied out of the way."""
    found: list[Instruction] = []
    for one in instructions:
        before = found[-1] if found else None
        if before is None or one.op is not Op.FREE or before.op is not Op.RUN:
            found.append(one)
            continue
        free: dict[tuple[object, ...], list[int]] = defaultdict(list)
        last, times = set(one.reads), Counter(before.reads)
        for buffer in sorted(before.reads, key=lambda buffer: buffer not in fed):
            if buffer in last and buffer in may and times[buffer] == 1:
                free[buffers[buffer].kind].append(buffer)
        taken = []
        for written in before.writes:
            kind = buffers[written].kind
            if buffers[written].spec is not None and free[kind]:
                taken.append(free[kind].pop(0))
        found[-1] = replace(before, donates=tuple(sorted(taken)))
        rest = tuple(buffer for buffer in one.reads if buffer not in taken)
        if rest:
            found.append(replace(one, reads=rest))
    return found
