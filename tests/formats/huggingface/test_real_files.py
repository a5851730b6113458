"""Real config.json files: accepted with the parameters of their models, or refused for a reason that holds."""

from __future__ import annotations

import pytest

from meshwright.errors import MeshwrightError
from meshwright.formats.huggingface import read_config
from meshwright.formats.huggingface.nested import TEXT_ONLY
from tests.real_files import ACTIVE, CARD, CLASS, RealFile, real_files

FILES = {file.name: file for file in real_files()}


@pytest.mark.parametrize("name", FILES)
def test_a_real_file(name: str) -> None:
    file = FILES[name]
    if file.refused:
        with pytest.raises(MeshwrightError) as caught:
            read_config(file.config, name)
        assert set(file.refused) == {problem.field for problem in caught.value.problems}
        return
    model = read_config(file.config, name)
    assert model.parameters == pytest.approx(file.parameters or model.parameters, rel=CARD if file.of_card else CLASS)
    assert model.active_parameters == pytest.approx(file.active or model.active_parameters, rel=ACTIVE)


def test_how_many_files_there_are() -> None:
    counted = [file for file in FILES.values() if file.parameters and not file.of_card]
    assert len(FILES) >= 116
    assert len(counted) >= 150
    assert sum(file.active is not None for file in counted) >= 60
    assert len({file.model_type for file in FILES.values()}) >= 70


def tower(file: RealFile) -> bool:
    """Whether the file describes an encoder of images beside text."""
    return isinstance(file.config.get("vision_config"), dict) and isinstance(file.config.get("text_config"), dict)


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if tower(file)])
def test_real_files_are_read_with_their_towers(name: str) -> None:
    model = read_config(FILES[name].config, name)
    assert model.tower_layers > 0 or model.stream("vision") is not None
    assert not any(note.startswith(TEXT_ONLY) for note in model.notes)
