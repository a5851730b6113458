"""Files of programs that are known and not read are refused by the program's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.errors import InputError
from meshwright.launch_files.other_programs import of_another


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("apiVersion: batch/v1\nkind: Job\nspec: {}\n", "a manifest of Kubernetes"),
        ("defaults: base.yaml\ngrpo:\n  num_prompts_per_step: 8\n", "NeMo-RL's configuration"),
        (
            "defaults: sft.yaml\npolicy:\n  a: nemo_automodel.b\ncluster:\n  gpus_per_node: 8\n",
            "NeMo-RL's configuration",
        ),
        ("actor_rollout_ref:\n  model: {}\ntrainer: {}\n", "verl's configuration"),
        ("run_name: a\nmodel:\n  d_model: 64\ndata: {}\nfsdp: {}\n", "OLMo's configuration"),
        ('name: a\n"on": push\njobs:\n  a: {uses: NVIDIA-NeMo/Automodel}\n', "a workflow of GitHub"),
        ("name: a\ndescription: step_scheduler of nemo_automodel\nruns:\n  using: composite\n", "an action of GitHub"),
        ("defaults:\n  - train: 7b\nexperiment:\n  exp_name: a\naction: run\n", "FlagScale's configuration"),
        ("trainer: {}\ndistributed_strategy: {}\ndata: {}\n", "NeuronX Distributed Training's configuration"),
        ("trainer: {}\nremote_critic_rm: {}\nmodel: {}\n", "NeMo-Aligner's configuration"),
        (
            "apiVersion: a/v1\nkind: Workflow\nspec:\n  args: {pipe-parallel-size: 4, model-parallel-size: 2}\n",
            "Kubernetes",
        ),
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
    policies = of_another("config_registry.py", "from torchtitan.experiments.rl.trainer import RLTrainer\n")
    assert policies is not None
    assert "rollouts" in policies.why
    recipe = of_another("qwen3.py", "from megatron.bridge.models.qwen import Qwen3ModelProvider32B\n")
    assert recipe is not None
    assert "--from hydra" in recipe.fix
    ladder = of_another("ladder.py", "from olmo_core.model_ladder import ModelLadder\n")
    assert ladder is not None
    assert "OLMo-core's" in ladder.what
    assert of_another("run.json", "actor_rollout_ref: {}\n") is None


def test_a_copy_of_a_program_is_named_beside_what_its_file_says(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
        "[parallelism]\ntensor_parallel_degree = 2\n"
    )
    for program, told in (("train_mine.py", True), ("train.py", False), ("-m torchtitan.train", False)):
        script = tmp_path / "run.sh"
        script.write_text(f"torchrun --nproc_per_node=8 {program} --job.config_file a.toml\n")
        report = check(script, cluster="8xH100", search=False)
        assert report.launch is not None
        assert any("train_mine.py is not torchtitan's own program" in note for note in report.launch.notes) is told


def test_what_a_program_is_started_with_is_asked_where_only_that_is_unknown(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        'CONFIG=a.yaml\nif [[ -f /data/b.yaml ]]; then CONFIG=b.yaml; fi\ntorchrun train_dist.py "$CONFIG"\n'
    )
    with pytest.raises(InputError) as found:
        check(script, cluster="8xH100")
    assert "whether /data/b.yaml is there (run.sh:2)" in found.value.problems[0].why


def test_an_unknown_option_that_says_no_plan_is_not_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    words = "model_name=llama3-8b per_device_batch_size=1 max_target_length=4096 ici_fsdp_parallelism=8"
    script.write_text(f"W=$(python3 -c 1)\npython3 -m MaxText.train base.yml {words} warmup_steps_fraction=$W\n")
    report = check(script, cluster="8xH100", search=False)
    assert not report.violations
    script.write_text(f"W=$(python3 -c 1)\npython3 -m MaxText.train base.yml {words} per_device_batch_size=$W\n")
    assert "per_device_batch_size is not known" in check(script, cluster="8xH100", search=False).violations[0].what


def test_a_script_of_nemo_2_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "pretrain.py"
    path.write_text("from nemo.collections import llm\nrecipe = llm.llama3_8b.pretrain_recipe(num_nodes=2)\n")
    with pytest.raises(InputError, match=r"'pretrain.py' is a script of NeMo 2"):
        check(path, cluster="16xH100")


def test_a_module_of_alpa_without_stages_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "suite.py"
    path.write_text("from alpa import ManualStageOption\ncases = solutions([[0, 1], [2, 3]], [(1, 2)] * 2)\n")
    with pytest.raises(InputError, match=r"'suite.py' is a module of Alpa"):
        check(path, cluster="4xA100-40")


def test_a_script_that_starts_no_python_says_what_it_runs(tmp_path: Path) -> None:
    script = tmp_path / "submit.sh"
    script.write_text("curl -X POST -d @job.json https://cloud.invalid/jobs\n")
    with pytest.raises(InputError, match="it runs curl, and starts no Python program"):
        check(script, cluster="8xH100")
