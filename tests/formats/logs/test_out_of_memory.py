"""Messages of runs that ran out of device memory: all forms, every rank once, no numbers lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.formats.logs.out_of_memory import OutOfMemory, read_out_of_memory
from meshwright.units import GIB

RECENT = (
    "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried:.2f} GiB. GPU 3 has a total "
    "capacity of 79.15 GiB of which 1.25 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory "
    "in use. Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, and {unused:.2f} GiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting ..."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 39.59 GiB total capacity; 36.00 GiB "
    "already allocated; 256.00 MiB free; 38.00 GiB reserved in total by PyTorch)"
)
XLA = "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes."


def read(tmp_path: Path, *lines: str) -> tuple[OutOfMemory, ...]:
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines), "utf-8")
    return read_out_of_memory(log)


def test_a_recent_message_of_pytorch(tmp_path: Path) -> None:
    (found,) = read(
        tmp_path,
        " iteration        3/     100 | elapsed time per iteration (ms): 8123.1 |",
        '[rank11]:   File "/opt/megatron/cross_entropy.py", line 43, in forward',
        "\x1b[31m" + RECENT.format(rank=11, tried=2, allocated=70, unused=3),
    )
    assert (found.line, found.rank, found.steps_done) == (3, 11, 3)
    assert found.where == "forward in cross_entropy.py"
    assert found.tried_bytes == 2 * GIB
    assert found.unused_bytes == pytest.approx(3 * GIB)
    assert found.outside_bytes == pytest.approx(4.9 * GIB)


def test_an_old_message_counts_what_is_reserved_in_total(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "3: " + OLD)
    assert found.rank == 3
    assert found.tried_bytes == 0.5 * GIB
    assert found.unused_bytes == pytest.approx(2 * GIB)
    assert found.outside_bytes == pytest.approx((39.59 - 0.25 - 38) * GIB)
    assert found.steps_done is None


@pytest.mark.parametrize("line", [XLA, "RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."])
def test_xla_says_only_what_it_asked_for(tmp_path: Path, line: str) -> None:
    (found,) = read(tmp_path, line)
    assert found.tried_bytes == 8 * GIB
    assert found.unused_bytes is None
    assert found.outside_bytes is None


def test_the_first_message_of_every_rank(tmp_path: Path) -> None:
    lines = [RECENT.format(rank=rank, tried=tried, allocated=60, unused=1) for rank, tried in ((5, 1), (6, 2), (5, 9))]
    assert [(one.rank, one.tried_bytes / GIB) for one in read(tmp_path, *lines)] == [(5, 1), (6, 2)]


@given(
    tried=st.floats(0.01, 50).map(lambda x: round(x, 2)),
    allocated=st.floats(0.01, 78).map(lambda x: round(x, 2)),
    unused=st.floats(0, 20).map(lambda x: round(x, 2)),
)
def test_sizes_are_read_as_they_are_printed(
    tmp_path_factory: pytest.TempPathFactory, tried: float, allocated: float, unused: float
) -> None:
    line = RECENT.format(rank=0, tried=tried, allocated=allocated, unused=unused)
    (found,) = read(tmp_path_factory.mktemp("oom"), line)
    assert found.tried_bytes == pytest.approx(tried * GIB)
    assert found.allocated_bytes == pytest.approx(allocated * GIB)
    assert found.reserved_bytes == pytest.approx((allocated + unused) * GIB)


@pytest.mark.parametrize("text", ["all is well", "out of memory"])
def test_a_log_without_one_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="no out-of-memory error is found"):
        read(tmp_path, text)
