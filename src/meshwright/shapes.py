"""Array types with shapes in them: `Float[np.ndarray, "rows"]`.

With jaxtyping installed (a development dependency) the shapes are real types that the tests check at run time;
without it they are plain `np.ndarray`, so that users install and import nothing for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        import sys

        if "pytest" not in sys.modules:
            raise ImportError
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Shaped:
            """Stands in for a jaxtyping type: subscripting gives the array type back."""

            def __class_getitem__(cls, item: Any) -> Any:
                return item[0] if isinstance(item, tuple) else item

        Bool = Float = Int = _Shaped

__all__ = ["Array", "Bool", "Column", "Float", "Int", "Rows", "spread"]

Array = Float[np.ndarray, "..."]
"""Numbers in any shape."""
Rows = Float[np.ndarray, "rows"]
"""A number per row."""
Column = int | float | np.integer | Array | Int[np.ndarray, "..."]
"""A number per row, or one number for all rows; rows may have any shape that broadcasts."""


def spread(values: Column, shape: tuple[int, ...]) -> Array:
    """Values in a shape that they broadcast to: themselves where they have it, as most do, else a view.

    Args:
        values: not to be written to afterwards.
        shape: the shape of the result.
    """
    own = np.asarray(values)
    return own if own.shape == shape else np.broadcast_to(own, shape)
