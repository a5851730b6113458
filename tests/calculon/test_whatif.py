"""What-if: every change is searched anew, the largest effect first."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from meshwright.app.calculon import CalculonWhatIf
from meshwright.app.verbs import python_verb
from meshwright.calculon.answer import SearchGoal
from meshwright.calculon.search import search
from meshwright.calculon.whatif import system_numbers
from meshwright.errors import InfeasibleError, InputError
from tests.calculon.spaces import SMALL, a100, space_of

calculon_what_if = python_verb("calculon what-if")
SYSTEM = a100(8.0, 64.0)
PINS = {"tensor_par": (2,), "pipeline_par": (4,)}
PIN = ["tensor_par=2", "pipeline_par=4"]


@pytest.fixture(scope="module")
def found() -> CalculonWhatIf:
    return calculon_what_if(SMALL, SYSTEM, procs=16, batch=16, factors=(0.5, 2.0), pin=PIN)


def test_each_change_is_the_optimum_of_the_changed_system(found: CalculonWhatIf) -> None:
    numbers = {number.name: number for number in found.answer.numbers}
    changed = {
        "matrix.float16.tflops": lambda factor: replace(
            SYSTEM,
            matrix={"float16": replace(SYSTEM.matrix["float16"], peak=SYSTEM.matrix["float16"].peak * factor)},
        ),
        "mem1.GiB": lambda factor: a100(8.0 * factor, 64.0),
        "networks[1].bandwidth": lambda factor: replace(
            SYSTEM,
            networks=(
                SYSTEM.networks[0],
                replace(SYSTEM.networks[1], bandwidth_bytes_per_s=SYSTEM.networks[1].bandwidth_bytes_per_s * factor),
            ),
        ),
    }
    for name, change in changed.items():
        for one in numbers[name].changes:
            best = search(
                space_of(SMALL, change(one.factor), 16, 16, "optimal-execution", pins=PINS),
                SearchGoal(top=1, front=False),
            ).best[0]
            assert one.rate == best.sample_rate
            assert one.repriced_rate is None or one.repriced_rate <= one.rate
    assert [number.spread for number in found.answer.numbers] == sorted(
        (number.spread for number in found.answer.numbers), reverse=True
    )


def test_better_hardware_is_never_worse(found: CalculonWhatIf) -> None:
    base = found.answer.base.best[0].sample_rate
    for number in found.answer.numbers:
        if number.name.endswith((".tflops", ".GiB", "GBps")):
            assert number.changes[0].rate <= base * (1 + 1e-12), number.name
            assert number.changes[1].rate >= base * (1 - 1e-12), number.name


def test_every_number_is_scaled_alone_and_by_name() -> None:
    numbers = list(system_numbers(SYSTEM, ("float16",)))
    assert len({number.name for number in numbers}) == len(numbers)
    for number in numbers:
        other = {one.name: one.value for one in system_numbers(number.scaled(2.0), ("float16",))}
        for one in numbers:
            assert other[one.name] == pytest.approx(one.value * (2.0 if one.name == number.name else 1.0))


def test_the_plot_is_a_drawing_of_every_number(found: CalculonWhatIf) -> None:
    root = ElementTree.fromstring(found.svg())
    text = "".join(root.itertext())
    assert all(number.name in text for number in found.answer.numbers)
    bars = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.get("y")]
    assert len(bars) == 2 * len(found.answer.numbers)


def test_bad_factors_and_hopeless_systems_are_told() -> None:
    with pytest.raises(InputError, match="factor"):
        calculon_what_if(SMALL, SYSTEM, procs=8, batch=8, factors=(1.0, -1.0))
    with pytest.raises(InfeasibleError, match="feasible"):
        calculon_what_if(SMALL, a100(0.001, 0.0), procs=16, batch=16, factors=(2.0,), pin=PIN)
