"""What holds of every space of the engine: a test class inherits it, and says how to search and how to enumerate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.search.result import Certificate


class EngineCases:
    """Searched and enumerated, a space gives the same answers."""

    def search(self, top: int) -> tuple[list[float], Certificate]:
        """Seconds of the best members in order, and the certificate."""
        raise NotImplementedError

    def everything(self) -> tuple[list[float], int]:
        """Seconds of all members that fit, one per answer that may be given, and the size of the space."""
        raise NotImplementedError

    @pytest.mark.parametrize("top", [1, 4])
    def test_the_best_are_those_of_an_enumeration(self, top: int) -> None:
        times, _ = self.everything()
        found, certificate = self.search(top)
        assert found == pytest.approx(sorted(times)[:top], rel=1e-9)
        assert certificate.optimal

    def test_every_member_is_counted_once(self) -> None:
        _, size = self.everything()
        _, certificate = self.search(2)
        assert certificate.space == size
        assert certificate.priced + sum(count for _, count in certificate.pruned) == size
        assert all(count > 0 for _, count in certificate.pruned)

    def test_a_search_is_repeatable(self) -> None:
        (one, first), (two, second) = self.search(3), self.search(3)
        assert one == two
        assert replace(first, search_s=0.0) == replace(second, search_s=0.0)
