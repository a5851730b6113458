"""The words of the schedule language: what a task does, and in which lane of its worker it runs.

compute       F B I W R X OPT                       one after the other, in the order of the list
send          SEND_F SEND_B                         per pair of workers, in the order of the list
receive       RECV_F RECV_B                         when the message arrives
collective    UNSHARD RESHARD REDUCE                sharded data parallelism
host          OFFLOAD_A OFFLOAD_W | RELOAD_A RELOAD_W   to host memory | from it
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Kind(IntEnum):
    """What a task does on one virtual stage; the name is what users see."""

    F = 0
    """Forward."""
    B = 1
    """Full backward: input and weight gradient."""
    I = 2  # noqa: E741 - the field's own letter
    """Input gradient only; its `W` follows some time later."""
    W = 3
    """Weight gradient only."""
    R = 4
    """Forward again, to recompute what the backward needs."""
    X = 5
    """Redundant forward: the stage after this one (behind the last: the first), run here as well against failures."""
    OPT = 6
    """Optimizer step; the n-th makes version n + 1 of the weights."""
    SEND_F = 7
    """Sends the output of F to the stage after."""
    RECV_F = 8
    """Receives the input of F from the stage before."""
    SEND_B = 9
    """Sends the input gradient of B or I to the stage before."""
    RECV_B = 10
    """Receives the output gradient for B or I from the stage after."""
    UNSHARD = 11
    """Gathers the weights over the data-parallel ranks."""
    RESHARD = 12
    """Frees what UNSHARD gathered."""
    REDUCE = 13
    """Reduces (or reduce-scatters) the gradients over the data-parallel ranks."""
    OFFLOAD_A = 14
    """Copies the activations of a micro-batch to another memory and frees them here."""
    RELOAD_A = 15
    """Copies the activations of a micro-batch back from there."""
    OFFLOAD_W = 16
    """Drops the weights from the device; what changed is copied to the host first."""
    RELOAD_W = 17
    """Brings the weights from host memory."""


class Lane(IntEnum):
    """What part of a worker a task occupies; lanes run beside each other."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2
    COLLECTIVE = 3
    HOST_OUT = 4
    HOST_IN = 5


LANE = np.array(
    [Lane.COMPUTE] * 7 + [Lane.SEND, Lane.RECEIVE] * 2 + [Lane.COLLECTIVE] * 3 + [Lane.HOST_OUT, Lane.HOST_IN] * 2,
    np.int8,
)
"""Lane of each kind."""

ROUNDS = np.isin(
    np.arange(len(Kind)), [Kind.OPT, Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE, Kind.OFFLOAD_W, Kind.RELOAD_W]
)
"""Kinds that concern a whole chunk: they are numbered by how many of them the chunk had before, not by micro-batch."""

WEIGHTED = np.isin(np.arange(len(Kind)), [Kind.F, Kind.B, Kind.I, Kind.W, Kind.R])
"""Kinds that use the weights of their stage."""

LAST_BASIC = Kind.X
"""Tables of kinds up to this one compute only, and are checked and simulated without a look at the others."""
