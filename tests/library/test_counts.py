"""Parameters of the library's models as classes build them and cards print them."""

from __future__ import annotations

import pytest

from meshwright.library.models import spec
from tests.counts import ACTIVE, LIBRARY, TOLERANCE


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_parameters_of_a_library_model(name: str) -> None:
    count, model = LIBRARY[name], spec(name)
    assert model.parameters == pytest.approx(count["parameters"], rel=TOLERANCE[count["basis"]])
    assert model.active_parameters == pytest.approx(count.get("active", model.active_parameters), rel=ACTIVE)


def test_how_many_models_are_counted() -> None:
    assert sum(count["basis"] == "class" for count in LIBRARY.values()) >= 160
    assert sum("active" in count for count in LIBRARY.values()) >= 30
