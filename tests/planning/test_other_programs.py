"""Files of programs that are known and not read are refused by the program's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.errors import InputError
from meshwright.planning.other_programs import of_another


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("apiVersion: batch/v1\nkind: Job\nspec: {}\n", "a manifest of Kubernetes"),
        ("defaults: base.yaml\ngrpo:\n  num_prompts_per_step: 8\n", "NeMo-RL's configuration"),
        ("actor_rollout_ref:\n  model: {}\ntrainer: {}\n", "verl's configuration"),
        ("run_name: a\nmodel:\n  d_model: 64\ndata: {}\nfsdp: {}\n", "OLMo's configuration"),
        ("work_group: amd\nmodules:\n  trainer: {}\n", "Primus' configuration"),
    ],
)
def test_a_file_is_refused_by_its_program(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=named):
        check(tmp_path / "run.yaml", cluster="8xH100")


def test_a_file_of_nobody_known_names_the_choices() -> None:
    assert of_another("run.yaml", "model: x\nbatch: 2\n") is None
    # A run of Composer that trains an image model.
    assert (
        of_another("run.yaml", "run_name: a\nmodel: {}\ntrain_dataset: {}\ndevice_train_microbatch_size: auto\n")
        is None
    )
    assert of_another("run.json", "actor_rollout_ref: {}\n") is None
