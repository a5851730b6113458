"""Which dimensions of an equation's operands and results belong together: the factors of its loop.

A matrix product has the factors batch, rows, columns and the contracted one; an elementwise equation one factor per
dimension. Whatever axis of the mesh splits a factor splits every dimension that belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from meshwright.compiler.pointwise import POINTWISE

NO_FACTOR = -1
"""Marks a dimension that cannot be split: every device needs all of it."""

OF_ROWS = ("lu_pivots_to_permutation", "tridiagonal_solve")
"""Equations whose first operand has a row where others of their kind have a matrix."""
SUMS_OF_RANKS = ("psum", "psum_invariant")
"""Sums over axes of a mesh that the program itself names."""

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """Factors of one equation."""

    sizes: tuple[int, ...]
    """Size of each factor."""
    operands: tuple[Dims, ...]
    """Factor of each dimension of each operand."""
    results: tuple[Dims, ...]
    """Factor of each dimension of each result."""

    def dimension_of(self, dims: Dims) -> list[int]:
        """Dimension of each factor in one operand or result; -1 where it has none, and for no factor (last).

        Args:
            dims: an entry of `operands` or `results`.
        """
        return [dims.index(factor) if factor in dims else -1 for factor in range(len(self.sizes))] + [-1]


def rule_of(eqn: core.JaxprEqn) -> SplitRule:
    """Factors of an equation.

    Args:
        eqn: any; those that nobody knows keep their operands and results whole.
    """
    name = eqn.primitive.name
    if name in _RULES:
        return _RULES[name](eqn)
    if (name.startswith("reduce_") and name != "reduce_precision") or name in ("argmax", "argmin"):
        return _reduction(eqn)
    arrays = [atom.aval.shape for atom in [*eqn.invars, *eqn.outvars] if atom.aval.shape]
    if len(set(arrays)) <= 1 or (name in POINTWISE and len({len(shape) for shape in arrays}) == 1):
        return _elementwise(eqn, blocked=_blocked(eqn))
    return _whole(eqn)


def _blocked(eqn: core.JaxprEqn) -> tuple[int, ...]:
    """Dimensions along which an equation of equal shapes mixes entries."""
    name, params = eqn.primitive.name, eqn.params
    if name.startswith("cum"):
        return (params["axis"],)
    if name == "sort":
        return (params["dimension"],)
    if name == "rev":
        return tuple(params["dimensions"])
    return () if name in POINTWISE or eqn.outvars[0].aval.shape == () else tuple(range(len(eqn.outvars[0].aval.shape)))


class _Factors:
    """Factors as they are found."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def new(self, size: int) -> int:
        if size == 1:
            return NO_FACTOR
        self.sizes.append(size)
        return len(self.sizes) - 1

    def rule(self, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> SplitRule:
        return SplitRule(
            sizes=tuple(self.sizes), operands=tuple(map(tuple, operands)), results=tuple(map(tuple, results))
        )


def _whole(eqn: core.JaxprEqn) -> SplitRule:
    return SplitRule(
        sizes=(),
        operands=tuple((NO_FACTOR,) * atom.aval.ndim for atom in eqn.invars),
        results=tuple((NO_FACTOR,) * var.aval.ndim for var in eqn.outvars),
    )


def _elementwise(eqn: core.JaxprEqn, blocked: Sequence[int] = ()) -> SplitRule:
    """One factor per dimension; operands that have one entry in it serve all."""
    factors = _Factors()
    shape = max((atom.aval.shape for atom in [*eqn.outvars, *eqn.invars]), key=len)
    dims = [NO_FACTOR if place in blocked else factors.new(size) for place, size in enumerate(shape)]

    def own(atom: Any) -> list[int]:
        sizes = zip(dims, atom.aval.shape, shape, strict=False)
        return [dim if size == whole else NO_FACTOR for dim, size, whole in sizes]

    return factors.rule([own(atom) for atom in eqn.invars], [own(var) for var in eqn.outvars])


def _reduction(eqn: core.JaxprEqn) -> SplitRule:
    """Sums and maxima of parts are combined; the place of a maximum, or an index into a part, is not."""
    if "axes" not in eqn.params:
        return _whole(eqn)
    axes, factors = eqn.params["axes"], _Factors()
    whole = eqn.primitive.name.startswith("arg")
    dims = [
        NO_FACTOR if whole and place in axes else factors.new(size)
        for place, size in enumerate(eqn.invars[0].aval.shape)
    ]
    kept = [dim for place, dim in enumerate(dims) if place not in axes]
    return factors.rule([dims] * len(eqn.invars), [kept] * len(eqn.outvars))


def _transpose(eqn: core.JaxprEqn) -> SplitRule:
    factors = _Factors()
    dims = [factors.new(size) for size in eqn.invars[0].aval.shape]
    return factors.rule([dims], [[dims[place] for place in eqn.params["permutation"]]])


def _reshape(eqn: core.JaxprEqn) -> SplitRule:
    """Dimensions that are merged or parted are split by the outermost: rows of a merged dimension are contiguous.

    An array of no entries stays whole.
    """
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    factors = _Factors()
    old_dims, new_dims = [NO_FACTOR] * len(old), [NO_FACTOR] * len(new)
    i = j = 0
    while i < len(old) and j < len(new) and 0 not in old:
        if old[i] == 1 or new[j] == 1:
            i, j = (i + 1, j) if old[i] == 1 else (i, j + 1)
            continue
        first_old, first_new = i, j
        left, right = old[i], new[j]
        while left != right:
            if left < right:
                i += 1
                left *= old[i]
            else:
                j += 1
                right *= new[j]
        # Both hold as many entries per device only if the parts divide both.
        smaller = min(old[first_old], new[first_new])
        if max(old[first_old], new[first_new]) % smaller == 0:
            old_dims[first_old] = new_dims[first_new] = factors.new(smaller)
        i, j = i + 1, j + 1
    return factors.rule([old_dims, *([NO_FACTOR] * atom.aval.ndim for atom in eqn.invars[1:])], [new_dims])


def _product(eqn: core.JaxprEqn) -> SplitRule:
    """Batch, contracted, rows, columns; results are laid out as batch, rows, columns."""
    (left_k, right_k), (left_b, right_b) = eqn.params["dimension_numbers"]
    left, right = (atom.aval.shape for atom in eqn.invars[:2])
    factors = _Factors()
    left_dims, right_dims = [NO_FACTOR] * len(left), [NO_FACTOR] * len(right)
    for own, other in [*zip(left_b, right_b, strict=True), *zip(left_k, right_k, strict=True)]:
        left_dims[own] = right_dims[other] = factors.new(left[own])
    rows = [place for place in range(len(left)) if place not in (*left_b, *left_k)]
    columns = [place for place in range(len(right)) if place not in (*right_b, *right_k)]
    for place in rows:
        left_dims[place] = factors.new(left[place])
    for place in columns:
        right_dims[place] = factors.new(right[place])
    result = [left_dims[p] for p in left_b] + [left_dims[p] for p in rows] + [right_dims[p] for p in columns]
    return factors.rule([left_dims, right_dims], [result])


def _ragged(eqn: core.JaxprEqn) -> SplitRule:
    """Rows in groups, each times the matrix of its group: columns and what is contracted are split, groups are not."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (left_k, right_k), (left_b, right_b) = numbers.dot_dimension_numbers
    left, right = (atom.aval.shape for atom in eqn.invars[:2])
    ragged, grouped = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    if set(ragged) & {*left_k, *left_b} or not grouped:
        return _whole(eqn)
    factors = _Factors()
    left_dims, right_dims = [NO_FACTOR] * len(left), [NO_FACTOR] * len(right)
    for own, other in zip((*left_b, *left_k), (*right_b, *right_k), strict=True):
        left_dims[own] = right_dims[other] = factors.new(left[own])
    rows = [place for place in range(len(left)) if place not in (*left_b, *left_k)]
    columns = [place for place in range(len(right)) if place not in (*right_b, *right_k, *grouped)]
    for place in rows:
        left_dims[place] = NO_FACTOR if place in ragged else factors.new(left[place])
    for place in columns:
        right_dims[place] = factors.new(right[place])
    result = [left_dims[p] for p in left_b] + [left_dims[p] for p in rows] + [right_dims[p] for p in columns]
    sizes = [NO_FACTOR] * eqn.invars[2].aval.ndim
    return factors.rule([left_dims, right_dims, sizes], [result])


def _convolution(eqn: core.JaxprEqn) -> SplitRule:
    """Samples, features in and out; the image stays whole, as its edges would have to travel."""
    numbers = eqn.params["dimension_numbers"]
    image, kernel = (atom.aval.shape for atom in eqn.invars)
    factors = _Factors()
    grouped = eqn.params["feature_group_count"] != 1 or eqn.params["batch_group_count"] != 1
    samples = NO_FACTOR if eqn.params["batch_group_count"] != 1 else factors.new(image[numbers.lhs_spec[0]])
    given = NO_FACTOR if grouped else factors.new(image[numbers.lhs_spec[1]])
    made = NO_FACTOR if grouped else factors.new(kernel[numbers.rhs_spec[0]])
    image_dims, kernel_dims = [NO_FACTOR] * len(image), [NO_FACTOR] * len(kernel)
    result = [NO_FACTOR] * eqn.outvars[0].aval.ndim
    image_dims[numbers.lhs_spec[0]] = result[numbers.out_spec[0]] = samples
    image_dims[numbers.lhs_spec[1]] = kernel_dims[numbers.rhs_spec[1]] = given
    kernel_dims[numbers.rhs_spec[0]] = result[numbers.out_spec[1]] = made
    return factors.rule([image_dims, kernel_dims], [result])


def _gather(eqn: core.JaxprEqn) -> SplitRule:
    """Rows of a table: indices, rows taken whole, and the indexed dimension, whose parts are masked and summed."""
    numbers, slices = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    table, indices = (atom.aval.shape for atom in eqn.invars)
    factors = _Factors()
    batching = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    index_dims = [factors.new(size) for size in indices[:-1]] + [NO_FACTOR]
    table_dims = [NO_FACTOR] * len(table)
    offsets = []
    for place, size in enumerate(table):
        if place in batching:
            table_dims[place] = index_dims[batching[place]]
        elif place in numbers.collapsed_slice_dims:
            table_dims[place] = factors.new(size) if numbers.start_index_map == (place,) else NO_FACTOR
        else:
            table_dims[place] = factors.new(size) if slices[place] == size else NO_FACTOR
            offsets.append(table_dims[place])
    taken, walked = iter(offsets), iter(index_dims[:-1])
    result = [next(taken if place in numbers.offset_dims else walked) for place in range(eqn.outvars[0].aval.ndim)]
    return factors.rule([table_dims, index_dims], [result])


def _pad(eqn: core.JaxprEqn) -> SplitRule:
    """Dimensions that nothing is added to or taken from; others may be shifted, though their size stays."""
    factors = _Factors()
    sizes = zip(eqn.invars[0].aval.shape, eqn.params["padding_config"], strict=True)
    dims = [NO_FACTOR if any(config) else factors.new(size) for size, config in sizes]
    return factors.rule([dims, ()], [dims])


def _partly(eqn: core.JaxprEqn) -> SplitRule:
    """Slices, pads, joins, parts: dimensions whose size stays are split, those that change stay whole."""
    arrays = [atom.aval.shape for atom in [*eqn.invars, *eqn.outvars] if atom.aval.shape]
    rank = len(eqn.outvars[0].aval.shape)
    if any(len(shape) != rank for shape in arrays):
        return _whole(eqn)
    factors = _Factors()
    dims = [
        factors.new(sizes[0]) if len(set(sizes)) == 1 else NO_FACTOR
        for sizes in (tuple(shape[place] for shape in arrays) for place in range(rank))
    ]
    return factors.rule(
        [dims if atom.aval.shape else () for atom in eqn.invars],
        [dims if var.aval.shape else () for var in eqn.outvars],
    )


def _broadcast(eqn: core.JaxprEqn) -> SplitRule:
    """One factor per dimension of the result; the operand has those it is not stretched along."""
    factors = _Factors()
    shape = eqn.outvars[0].aval.shape
    dims = [factors.new(size) for size in shape]
    given = eqn.invars[0].aval.shape
    own = [
        dims[place] if size == shape[place] else NO_FACTOR
        for size, place in zip(given, eqn.params["broadcast_dimensions"], strict=True)
    ]
    return factors.rule([own, *([NO_FACTOR] * atom.aval.ndim for atom in eqn.invars[1:])], [dims])


def _keyed(eqn: core.JaxprEqn) -> SplitRule:
    """Keys, and what is drawn with each: the dimensions that both have are those of the keys."""
    given, made = (atom.aval.shape for atom in (eqn.invars[0], eqn.outvars[0]))
    factors = _Factors()
    keys = [factors.new(size) for size in min(given, made, key=len)]

    def own(shape: Sequence[int]) -> list[int]:
        return (keys if len(shape) >= len(keys) else []) + [NO_FACTOR] * (len(shape) - len(keys))

    return factors.rule([own(atom.aval.shape) for atom in eqn.invars], [own(made)])


def _largest(eqn: core.JaxprEqn) -> SplitRule:
    """Largest entries of each row: the dimension they are taken from stays whole."""
    factors = _Factors()
    axis = eqn.params.get("axis", eqn.params.get("reduction_dimension", -1)) % eqn.invars[0].aval.ndim
    dims = [NO_FACTOR if place == axis else factors.new(size) for place, size in enumerate(eqn.invars[0].aval.shape)]
    return factors.rule([dims], [dims] * len(eqn.outvars))


def _stack(eqn: core.JaxprEqn) -> SplitRule:
    """Arrays of one shape side by side along a dimension that they did not have."""
    factors = _Factors()
    dims = [factors.new(size) for size in eqn.invars[0].aval.shape]
    axis = eqn.params["axis"]
    return factors.rule([dims] * len(eqn.invars), [[*dims[:axis], NO_FACTOR, *dims[axis:]]])


def _unstack(eqn: core.JaxprEqn) -> SplitRule:
    """Arrays that lay side by side along a dimension, which they do not have any more."""
    factors, axis = _Factors(), eqn.params["axis"]
    dims = [factors.new(size) for place, size in enumerate(eqn.invars[0].aval.shape) if place != axis]
    return factors.rule([[*dims[:axis], NO_FACTOR, *dims[axis:]]], [dims] * len(eqn.outvars))


def _windows(eqn: core.JaxprEqn) -> SplitRule:
    """Pooling: dimensions that no window reaches along; neighbours of the others would have to travel."""
    params, factors = eqn.params, _Factors()
    rank = eqn.outvars[0].aval.ndim
    dims = []
    for place in range(rank):
        one = (params["window_dimensions"][place], params["window_strides"][place], *params["padding"][place])
        dilated = [params[name][place] for name in ("base_dilation", "window_dilation") if params.get(name)]
        alone = one == (1, 1, 0, 0) and set(dilated) <= {1}
        dims.append(factors.new(eqn.outvars[0].aval.shape[place]) if alone else NO_FACTOR)
    return factors.rule(
        [dims if atom.aval.shape else () for atom in eqn.invars],
        [dims if var.aval.shape else () for var in eqn.outvars],
    )


def _of_matrices(eqn: core.JaxprEqn) -> SplitRule:
    """Matrices or rows side by side: each is computed by itself."""
    inner = len(eqn.params["fft_lengths"]) if eqn.primitive.name == "fft" else 1 if eqn.primitive.name in OF_ROWS else 2
    factors = _Factors()
    side = [factors.new(size) for size in eqn.invars[0].aval.shape[:-inner]]
    arrays = [*eqn.invars, *eqn.outvars]
    if any(atom.aval.shape[: len(side)] != eqn.invars[0].aval.shape[: len(side)] for atom in arrays):
        return _whole(eqn)

    def own(atom: Any) -> list[int]:
        return [*side, *[NO_FACTOR] * (atom.aval.ndim - len(side))]

    return factors.rule([own(atom) for atom in eqn.invars], [own(var) for var in eqn.outvars])


_RULES: dict[str, Callable[[Any], SplitRule]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "ragged_dot_general": _ragged,
    "gather": _gather,
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "slice": _partly,
    "dynamic_slice": _partly,
    "dynamic_update_slice": _partly,
    "pad": _pad,
    "concatenate": _partly,
    "split": _partly,
    "stack": _stack,
    "unstack": _unstack,
    **dict.fromkeys(SUMS_OF_RANKS, _elementwise),
    "broadcast_in_dim": _broadcast,
    "random_bits": _keyed,
    "random_fold_in": _elementwise,
    "random_wrap": _keyed,
    "random_unwrap": _keyed,
    "random_split": _keyed,
    "random_seed": _keyed,
    "top_k": _largest,
    "approx_top_k": _largest,
    **dict.fromkeys(
        (
            "reduce_window",
            "reduce_window_sum",
            "reduce_window_max",
            "reduce_window_min",
            "select_and_scatter_add",
            "select_and_gather_add",
        ),
        _windows,
    ),
    **dict.fromkeys(
        (
            *("cholesky", "cholesky_update", "eig", "eigh", "hessenberg", "lu", "ormqr", "qr", "geqp3", "geqrf"),
            *("householder_product", "schur", "svd", "symmetric_product", "triangular_solve", "tridiagonal", "fft"),
            *OF_ROWS,
        ),
        _of_matrices,
    ),
}
