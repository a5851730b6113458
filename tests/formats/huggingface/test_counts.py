"""Parameters of real files and of one config a family, as their classes build them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import families
from meshwright.errors import UnsupportedError
from meshwright.formats.huggingface import read_config
from tests.counts import ACTIVE, FAMILIES, REAL, TOLERANCE, real_config


def check(config: dict[str, Any], count: dict[str, Any], name: str) -> None:
    model = read_config(config, name)
    assert model.parameters == pytest.approx(count["parameters"], rel=TOLERANCE["class"])
    assert model.active_parameters == pytest.approx(count.get("active", model.active_parameters), rel=ACTIVE)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_family_as_its_class_builds_it(name: str) -> None:
    check(FAMILIES[name]["config"], FAMILIES[name], name)


@pytest.mark.parametrize("name", sorted(REAL))
def test_a_real_file(name: str) -> None:
    config = real_config(name)
    if config is None:
        pytest.skip("the files are not here")
    if "refused" not in REAL[name]:
        check(config, REAL[name], name)
        return
    with pytest.raises(UnsupportedError) as caught:
        read_config(config, name)
    assert set(REAL[name]["refused"]) == {problem.field.rpartition(".")[2] for problem in caught.value.problems}


def test_the_page_of_models_is_up_to_date() -> None:
    page = Path(families.PAGE).read_text()
    assert families.page() == page, "run `make models`"
