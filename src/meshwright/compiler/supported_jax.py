"""The versions of JAX whose programs are read here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from meshwright.errors import UnsupportedError

FIRST, BEHIND = (0, 10), (0, 11)
"""Minor versions: the oldest one, and the first that is too new. Programs of JAX change between minor versions."""


def check_jax(found: str | None = None) -> None:
    """Refuse a JAX whose programs may read otherwise.

    Args:
        found: its version; that of the installed one without it.

    Raises:
        UnsupportedError: it is older or newer than those that are supported.
    """
    if found is None:
        try:
            found = version("jax")
        except PackageNotFoundError:
            return  # whoever needs it says so
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if FIRST <= numbers < BEHIND:
        return
    first, behind = (".".join(map(str, one)) for one in (FIRST, BEHIND))
    raise UnsupportedError(
        what=f"JAX {found} is too {'old' if numbers < FIRST else 'new'}",
        why=f"training steps are read as the programs of JAX {first} and up to {behind}, which change between minor"
        " versions",
        fix=f"pip install 'jax>={first},<{behind}'",
        field="jax",
    )
