"""Which of several jobs of a script is meant."""

from __future__ import annotations

import pytest

from meshwright.errors import Problem
from meshwright.formats.shell import job_at, launches, read_script

SIZES = """
for size in "24 1024" "32 4096"; do
  set -- $size
  torchrun --nproc_per_node 8 train.py --num-layers $1 --hidden-size $2 --save /ckpt/$1
done
torchrun --nproc_per_node 8 finetune.py --config recipes/qwen-7b.yaml
"""


def chosen(text: str, job: str) -> str | Problem:
    """Words of the program that is meant, or the question."""
    found = launches(read_script(text, name="run.sh").commands)
    at = job_at(found, job)
    return at if isinstance(at, Problem) else " ".join(word.text for word in found[at].words)


@pytest.mark.parametrize(
    ("job", "holds"),
    [
        ("1", "--num-layers 24"),
        ("2", "--num-layers 32"),
        ("4096", "--num-layers 32"),
        ("finetune", "qwen-7b"),
        ("qwen-7b", "qwen-7b"),
        ("run.sh:6", "qwen-7b"),
    ],
)
def test_a_number_or_a_value_of_its_own_chooses_a_job(job: str, holds: str) -> None:
    assert holds in chosen(SIZES, job)


@pytest.mark.parametrize("job", ["", "4", "0", "train.py", "gpt"])
def test_what_means_none_or_several_is_asked_with_all_of_them(job: str) -> None:
    asked = chosen(SIZES, job)
    assert isinstance(asked, Problem)
    assert asked.what.startswith("the script starts 3 different jobs")
    assert "1 at run.sh:4 (train.py, --num-layers 24, --hidden-size 1024)" in asked.why
    assert "2 at run.sh:4 (train.py, --num-layers 32, --hidden-size 4096)" in asked.why
    assert asked.fix == "say which with --job 1 to --job 3"


def test_keys_that_name_a_run_are_not_shown_where_others_tell_jobs_apart() -> None:
    text = """
for split in "2,1" "1,2"; do
  IFS=',' read -r tp pp <<< "$split"
  python run_recipe.py logger.wandb_exp_name=a_long_name_of_the_experiment_and_its_data_tp${tp}_pp${pp} model.tp=$tp \\
    checkpoint.save=/results/$tp model.pp=$pp
done
"""
    asked = chosen(text, "")
    assert isinstance(asked, Problem)
    assert "1 at run.sh:4 (model.tp 2, model.pp 1); 2 at run.sh:4 (model.tp 1, model.pp 2)" in asked.why


def test_long_values_are_cut_where_they_differ() -> None:
    start = "/shared/projects/training/configurations/of/the/year/llama"
    asked = chosen(f"for s in 8b 70b; do torchrun train.py --model {start}-$s/config --steps 9; done", "")
    assert isinstance(asked, Problem)
    assert "(--model ...llama-8b/config); 2 at run.sh:1 (--model ...llama-70b/config)" in asked.why


def test_as_many_options_are_shown_as_tell_all_jobs_apart() -> None:
    runs = ["--a 1 --b 1 --c 1 --d 1", "--a 1 --b 1 --c 1 --d 2", "--a 2 --b 2 --c 2 --d 1"]
    asked = chosen("\n".join(f"torchrun train.py {one}" for one in runs), "")
    assert isinstance(asked, Problem)
    assert "1 at run.sh:1 (--a 1, --b 1, --c 1, --d 1); 2 at run.sh:2 (--a 1, --b 1, --c 1, --d 2)" in asked.why


def test_a_repetition_for_other_nodes_or_seeds_is_one_job() -> None:
    text = "for n in 0 1; do torchrun --nnodes 2 --nproc_per_node 8 train.py --tp 2 --node_rank $n --seed $n; done"
    assert "--node_rank 1" in chosen(text, "")
    assert "--node_rank 1" in chosen(text, "1")
    asked = chosen(text, "2")
    assert isinstance(asked, Problem)
    assert asked.what == "the script starts one job, and job '2' is asked for"


def test_other_processes_are_another_job() -> None:
    asked = chosen("for n in 8 16; do torchrun --nproc_per_node $n train.py --tp 2; done", "")
    assert isinstance(asked, Problem)
    assert "1 at run.sh:1 (8 processes); 2 at run.sh:1 (16 processes)" in asked.why


def test_what_decides_between_branches_is_named() -> None:
    text = 'if [ "$SIZE" = big ]; then\n python train.py --layers 32\nelse\n python train.py --layers 8\nfi'
    asked = chosen(text, "")
    assert isinstance(asked, Problem)
    assert asked.why.endswith("which of them runs depends on SIZE")


def test_options_behind_a_line_that_does_not_go_on_are_told() -> None:
    """Bash takes them for a command, which it does not find, and the training runs without them."""
    script = read_script("torchrun pretrain_gpt.py --bf16\n  --tensor-model-parallel-size 8 --seed 1\n", name="run.sh")
    told = [note for note in script.notes() if "belong to no program" in note]
    assert told == [
        "--tensor-model-parallel-size and what follows it at run.sh:2 belong to no program: the line before does not "
        "end in \\"
    ]
    assert not [*read_script("--bf16\n--seed 1\n").torn_options()]  # a text of options alone


@pytest.mark.parametrize("again", ["sbatch --dependency=singleton $0", 'qsub "$0"'])
def test_a_job_that_queues_itself_once_more_is_one_job(again: str) -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes=2\n{again}\nsrun bash -c 'torchrun --nproc_per_node 8 train.py --tp 2'\n"
    script = read_script(text, name="run.sh", read=lambda path: text if path == "run.sh" else None)
    assert not script.broken
    assert [launch.program for launch in launches(script.commands)] == ["train.py"]


def test_a_file_of_what_a_command_prints_is_one_unknown_word() -> None:
    script = read_script("torchrun train.py --config <(echo 'a: 1') --tp 2\n", name="run.sh")
    words = launches(script.commands)[0].words
    assert [word.text for word in words] == ["--config", "", "--tp", "2"]
    assert words[1].unknown is not None
    assert words[1].unknown.single


def test_a_script_that_ends_where_a_variable_is_missing_is_started_with_it() -> None:
    text = 'if [ -z "$TP" ]; then\n  echo usage\n  exit\nfi\ntorchrun train.py --tp $TP\n'
    words = launches(read_script(text, name="run.sh").commands)[0].words
    assert words[1].unknown is not None
    assert words[1].unknown.names == ("TP",)


def test_a_script_that_ends_before_it_starts_anything_says_where() -> None:
    script = read_script('if [ -z "$1" ]; then\n  echo usage\n  exit\nfi\ntorchrun train.py\n', name="run.sh")
    stopped = script.stopped()
    assert stopped is not None
    assert stopped.what == "the script stops at run.sh:3"
    assert stopped.why == "it exits there and has started nothing"


def test_a_copy_that_nobody_knows_is_not_the_file_that_is_called() -> None:
    """A script that logs the files it runs leaves copies of them under their own names."""
    text = "cat worker.sh >> logs/worker.sh\nbash worker.sh --tp 2\n"
    script = read_script(text, name="run.sh", read=lambda path: "torchrun train.py $@" if path == "worker.sh" else None)
    assert [[word.text for word in one.words] for one in launches(script.commands)] == [["--tp", "2"]]


def test_a_script_is_started_by_a_path() -> None:
    """`${0%/*}` is the folder of a script that is started as ./run.sh."""
    script = read_script('torchrun train.py --config "${0%/*}/../a.yaml" --name ${0##*/}\n', name="run.sh")
    assert [word.text for word in launches(script.commands)[0].words] == ["--config", "./../a.yaml", "--name", "run.sh"]


def test_a_wrapper_that_is_not_here_and_is_handed_a_program_is_told_as_one() -> None:
    script = read_script("CMD='pretrain_gpt.py --bf16'\nsrun launch.sh $CMD\n", name="run.sh")
    assert script.wrappers == {"launch.sh"}
