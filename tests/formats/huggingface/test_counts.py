"""Parameters of one config a family, as its class builds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import families
from meshwright.formats.huggingface import read_config
from tests.counts import ACTIVE, FAMILIES, TOLERANCE


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_family_as_its_class_builds_it(name: str) -> None:
    count = FAMILIES[name]
    model = read_config(count["config"], name)
    assert model.parameters == pytest.approx(count["parameters"], rel=TOLERANCE["class"])
    assert model.active_parameters == pytest.approx(count.get("active", model.active_parameters), rel=ACTIVE)


def test_the_page_of_models_is_up_to_date() -> None:
    page = Path(families.PAGE).read_text()
    assert families.page() == page, "run `make models`"
