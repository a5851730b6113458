"""Unions of nouns that their `kind` tells apart."""

from __future__ import annotations

from typing import Annotated, Any


class ByKind:
    """Marks `Annotated[A | B, BY_KIND]`: a reader goes by the `kind` and reports the faults of that member alone."""

    __slots__ = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        # Asked for by pydantic only, so that it is loaded by then; specs are built without it.
        from pydantic import Field

        return handler(Annotated[source, Field(discriminator="kind")])


BY_KIND = ByKind()
