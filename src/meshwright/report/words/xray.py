"""What `xray` says, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.units import GIB, MIB, gib, percent, significant
from meshwright.xray.compare import CollectiveRow, MemoryRow, ProductRow
from meshwright.xray.traced import Traced

CLOSE = 0.01
"""Relative difference of bytes that is called none."""


def xray_sentence(
    title: str,
    stage: int,
    seen: Traced,
    products: Sequence[ProductRow],
    collectives: Sequence[CollectiveRow],
    memory: Sequence[MemoryRow],
) -> str:
    """The verdict on one rank."""
    count = sum(one.count for one in seen.operators)
    same = sum(row.same for row in products)
    sent, shown = sum(row.same for row in collectives), sum(not row.hidden for row in collectives)
    whole, ours = sum(row.seen_bytes for row in memory), sum(row.ours_bytes for row in memory)
    parts = [
        f"rank {seen.rank} of {seen.world} (stage {stage}) of {title} under {seen.framework} {seen.version}:"
        f" {count:,} operators in {seen.micro_batches} of {seen.of_micro_batches} micro-batches.",
        f"{same} of {len(products)} shapes of products",
        f"and {sent} of {shown} kinds of collectives agree with the estimate{_unpriced(collectives)};"
        if shown
        else "agree with the estimate;",
        f"peak {gib(whole)} traced, {gib(ours)} estimated ({_against(ours, whole)}).",
    ]
    return " ".join(parts)


def _unpriced(rows: Sequence[CollectiveRow]) -> str:
    """Collectives that are in the list of operators and in no price."""
    small = [f"{row.unpriced}, {row.seen:,} of {amount(row.payload_bytes)}" for row in rows if row.unpriced]
    return f" (not priced: {'; '.join(small)})" if small else ""


def differences(
    products: Sequence[ProductRow], collectives: Sequence[CollectiveRow], memory: Sequence[MemoryRow]
) -> tuple[str, ...]:
    """Where the framework and the estimate differ."""
    return (*_products(products), *_collectives(collectives), *_memory(memory))


def _products(rows: Sequence[ProductRow]) -> Iterator[str]:
    for row in rows:
        if not row.same:
            yield f"product {product(row)} {row.phase}: {row.seen:,} seen, {row.ours:,} in the estimate"


def _collectives(rows: Sequence[CollectiveRow]) -> Iterator[str]:
    for row in rows:
        if row.same:
            continue
        what = f"{row.kind.replace('_', '-')} over {row.group} {row.ranks}, {row.phase}"
        if row.hidden:
            yield f"{what}: {row.ours:,} of {amount(row.payload_bytes)} in the estimate, inside attention and not seen"
        elif row.ours is None:
            yield f"{what}: {amount(row.payload_bytes)} seen, {amount(row.ours_bytes)} in the estimate"
        else:
            yield f"{what}: {row.seen:,} of {amount(row.payload_bytes)} seen, {row.ours:,} in the estimate"


def _memory(rows: Sequence[MemoryRow]) -> Iterator[str]:
    whole = sum(row.seen_bytes for row in rows)
    for row in rows:
        if abs(row.seen_bytes - row.ours_bytes) > CLOSE * whole:
            yield f"{row.kind} at the peak: {gib(row.seen_bytes)} seen, {gib(row.ours_bytes)} estimated"


def amount(size_bytes: float) -> str:
    """Bytes as text, small ones in KiB or MiB."""
    if size_bytes >= GIB:
        return gib(size_bytes)
    unit, name = (MIB, "MiB") if size_bytes >= MIB else (MIB / 1024, "KiB")
    return f"{significant(size_bytes / unit)} {name}"


def product(row: ProductRow) -> str:
    """Sizes of a product: result and what is summed over, times how many at once."""
    sizes = f"{row.result[0]} x {row.result[1]} over {row.inner}"
    return sizes if row.groups == 1 else f"{row.groups} x ({sizes})"


def _against(ours: float, seen: float) -> str:
    if not seen:
        return "nothing to compare"
    share = ours / seen - 1.0
    return "the same" if abs(share) < 0.0005 else f"{percent(abs(share))} {'more' if share > 0 else 'less'}"
