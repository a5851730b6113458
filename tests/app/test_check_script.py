"""A script of one's own: read, checked, edited, reported."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from meshwright import check
from meshwright.app.requests.check import CheckRequest
from meshwright.cli import main
from meshwright.errors import InputError
from meshwright.report.check_report import render_check
from meshwright.report.findings import github, junit, sarif

SCRIPT = r"""#!/bin/bash
TP=8
MODEL=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --kv-channels 128 --normalization RMSNorm --swiglu
  --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope
  --rotary-base 500000 --hidden-dropout 0.0 --attention-dropout 0.0)
torchrun --nproc_per_node 8 pretrain_gpt.py "${MODEL[@]}" \
  --tensor-model-parallel-size $TP --sequence-parallel \
  --micro-batch-size 1 --global-batch-size ${GBS:-32} --seq-length 8192 --max-position-embeddings 8192 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
  --bf16 --use-distributed-optimizer --save $OUT $EXTRA
"""
GPUS = "8xH100"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def test_every_value_says_where_it_is_written(script: Path) -> None:
    report = check("llama-3-8b", cluster=GPUS, source=script, search=False)
    read = {value["option"]: (value["value"], value["place"]) for value in report.to_dict()["read"]["values"]}
    assert read["--tensor-model-parallel-size"] == ("8", "train.sh:2")
    assert read["--global-batch-size"] == ("32", "train.sh:9")
    assert report.name == "tp8.dp1.z1.mbs1.gbs32.rc-full.nodpov"
    assert any("GBS (train.sh:9)" in text for text in report.warnings)
    assert any("$EXTRA (train.sh:11) is taken as empty" in text for text in report.warnings)
    assert "--save" not in read


def test_the_environment_and_arguments_are_taken(script: Path) -> None:
    report = check(
        "llama-3-8b", cluster=GPUS, source=script, search=False, environment=["GBS=64", "EXTRA=--overlap-grad-reduce"]
    )
    assert report.name == "tp8.dp1.z1.mbs1.gbs64.rc-full"
    script.write_text(SCRIPT.replace("TP=8", "TP=$1"))
    assert check("llama-3-8b", cluster=GPUS, source=script, search=False, arguments="4").name.startswith("tp4.dp2")


def test_a_length_that_no_file_says_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}')
    said = "the file states no sequence length: 4,096 tokens are assumed; --seq sets another"
    assert said in check("llama-3-8b", cluster="16xH100", source=path, search=False).warnings
    assert said not in check("llama-3-8b", cluster="16xH100", source=path, seq_len=8192, search=False).warnings


def test_what_was_read_stands_first_by_line_then_the_verdict(script: Path) -> None:
    with io.StringIO() as page:
        document = check("llama-3-8b", cluster=GPUS, source=script, search=False).to_dict()
        Console(file=page, width=120).print(render_check(document))
        text = page.getvalue()
    assert text.startswith(f"As read: {document['name']}\n")
    assert re.search(r"^  train.sh:\d+ +--num-layers 32, ", text, re.MULTILINE)
    assert text.index("\nok: llama-3-8b") < text.index("Assumed") < text.index("H100 kernels")


def test_a_script_alone_describes_its_model(script: Path) -> None:
    """Named or described, the model and its price are the same; what tokenizer there is, somebody must say."""
    report = check(script, cluster=GPUS)
    assert (report.exit_code, report.inputs) == (2, None)
    assert [v.what for v in report.violations] == ["the vocabulary is not known"]
    assert "--set vocab-size=N" in report.violations[0].fix
    assert check(script, cluster=GPUS, settings="vocab-size=128256", search=False).legal
    script.write_text(SCRIPT.replace("--bf16", "--bf16 --tokenizer-model meta-llama/Meta-Llama-3-8B"))
    named = check("llama-3-8b", cluster=GPUS, source=script, search=False)
    alone = check(script, cluster=GPUS, search=False)
    assert alone.estimate is not None
    assert alone.estimate.step_time_s == named.estimate.step_time_s
    assert any("the options describe one of 8,030,261,248 parameters" in text for text in alone.warnings)
    assert any("vocabulary of 128,256 tokens, that of llama-3-8b" in text for text in alone.warnings)
    script.write_text("#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --bf16 --micro-batch-size 1\n")
    assert "no model is given" in [v.what for v in check(script, cluster=GPUS).violations]


def test_what_is_not_known_is_asked_and_nothing_is_priced(script: Path) -> None:
    script.write_text(SCRIPT.replace("TP=8", "TP=$(nproc)"))
    report = check("llama-3-8b", cluster=GPUS, source=script)
    assert (report.exit_code, report.estimate, report.better) == (2, None, None)
    assert [(v.code, v.field, v.fix) for v in report.violations] == [
        ("ASK", "--tensor-model-parallel-size", "give --env TP=VALUE")
    ]
    assert check("llama-3-8b", cluster=GPUS, source=script, search=False, environment="TP=2").name.startswith("tp2")


def test_a_better_plan_is_a_diff_of_the_script(script: Path, tmp_path: Path) -> None:
    better = tmp_path / "better.sh"
    report = check("llama-3-8b", cluster=GPUS, source=script, fix=True, output=better)
    assert report.better is not None
    assert report.fix is not None
    assert "-TP=8" in report.fix.diff
    assert "-  --recompute-granularity full" in report.fix.diff
    again = check("llama-3-8b", cluster=GPUS, source=better)
    assert again.name == report.fix.plan
    assert again.better is None
    kept = [
        line for line in SCRIPT.splitlines() if "TP" not in line and "--recompute" not in line and "--bf16" not in line
    ]
    assert [line for line in kept if line not in better.read_text()] == []


def test_findings_for_pipelines_name_lines(script: Path) -> None:
    script.write_text(SCRIPT.replace("--rotary-base 500000", "--rotary-base 500000 --recompute-metod x"))
    document = check("llama-3-8b", cluster=GPUS, source=script, search=False).to_dict()
    found = json.loads(sarif(document, "jobs/train.sh", "1.0"))["runs"][0]["results"]
    assert {one["level"] for one in found} >= {"error", "note"}
    uris = {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in found}
    assert uris == {"jobs/train.sh"}
    line = next(at for at, text in enumerate(script.read_text().splitlines(), 1) if "--recompute-metod" in text)
    lines = [
        one["locations"][0]["physicalLocation"].get("region") for one in found if "metod" in one["message"]["text"]
    ]
    assert {"startLine": line} in lines
    suite = ElementTree.fromstring(junit(document, "jobs/train.sh"))
    failed = [case.get("name", "") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert any(name.startswith("OPTIONS") for name in failed)
    assert int(suite.get("failures", "0")) == len(failed)


def test_findings_annotate_lines_of_a_pull_request(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text(SCRIPT.replace("--rotary-base 500000", "--rotary-base 500000 --recompute-metod x"))
    monkeypatch.chdir(script.parent)
    document = check("llama-3-8b", cluster=GPUS, source=script, search=False).to_dict()
    line = next(at for at, text in enumerate(script.read_text().splitlines(), 1) if "--recompute-metod" in text)
    commands = github(document, str(script)).splitlines()
    assert any(one.startswith(f"::error file=train.sh,line={line},title=OPTIONS::") for one in commands)
    assert all(re.match(r"::(error|warning|notice) file=train\.sh[^:]*::\S", one) for one in commands)


@pytest.mark.parametrize(("form", "begins"), [("sarif", "{"), ("junit", "<?xml"), ("github", "::notice ")])
def test_the_command_prints_each_form_and_keeps_its_exit_code(
    script: Path, capsys: pytest.CaptureFixture[str], form: str, begins: str
) -> None:
    assert main(["check", "llama-3-8b", str(script), "--gpus", "4xH100", "--report", form]) == 5
    assert main(["check", "llama-3-8b", str(script), "--report", form]) == 2
    assert main(["check", "llama-3-8b", str(script), "--gpus", GPUS, "--time-limit", "1", "--report", form]) == 0
    out = capsys.readouterr().out
    assert out.startswith(begins) or "\n::notice " in out


@pytest.mark.parametrize("form", ["sarif", "junit", "github"])
def test_an_error_is_a_whole_report_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """A pipeline reads the report whatever the exit code."""
    (tmp_path / "run.sh").write_text("echo nothing\n")
    assert main(["check", str(tmp_path / "run.sh"), "--gpus", GPUS, "--report", form]) == 2
    out = capsys.readouterr().out
    if form == "sarif":
        (result,) = json.loads(out)["runs"][0]["results"]
        assert result["level"] == "error"
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("run.sh")
    elif form == "junit":
        assert ElementTree.fromstring(out).get("failures") == "1"
    else:
        assert re.match(r"::error file=\S*run\.sh,title=MW231::there are no options", out)


def test_a_product_of_degrees_is_told_at_the_largest(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python pretrain_gpt.py --num-layers 12 --hidden-size 512 --num-attention-heads 8 --seq-length 512 \\\n"
        "  --max-position-embeddings 512 --vocab-size 1024 --micro-batch-size 1 --bf16 \\\n"
        "  --tensor-model-parallel-size 2 \\\n  --pipeline-model-parallel-size 6\n"
    )
    report = check(tmp_path / "run.sh", cluster="8xH100", search=False)
    assert [one.place for one in report.violations if one.field == "devices"] == ["run.sh:4"]


def test_a_finding_is_one_command_whatever_names_hold() -> None:
    first = {"code": "LEGAL", "what": "100%\n::error::no", "why": "", "fix": "", "place": "a,b:c.sh:3"}
    document = {"violations": [first], "dominated_by": None, "warnings": []}
    (command,) = github(document, "jobs/train.sh").splitlines()
    assert command.startswith("::error file=jobs/a%2Cb%3Ac.sh,line=3,title=LEGAL::100%25")


def test_findings_name_files_from_where_the_pipeline_runs(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = check("llama-3-8b", cluster=GPUS, source=script, search=False).to_dict()

    def uris(path: str) -> set[str]:
        found = json.loads(sarif(document, path, "1.0"))["runs"][0]["results"]
        return {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in found}

    monkeypatch.chdir(script.parent)
    assert uris(str(script)) == {"train.sh"}
    assert uris("./jobs/of me/train.sh") == {"jobs/of%20me/train.sh"}
    assert uris("/elsewhere/train.sh") == {"file:///elsewhere/train.sh"}


def test_an_unknown_report_is_the_only_complaint_of_a_script(script: Path) -> None:
    with pytest.raises(InputError) as raised:
        CheckRequest.read({"model": str(script), "gpus": GPUS, "report": "xml"})
    assert [one.what for one in raised.value.problems] == ["--report is 'xml'"]


def test_findings_are_whole_xml_whatever_names_hold(script: Path) -> None:
    document = check("llama-3-8b", cluster=GPUS, source=script, search=False).to_dict()
    foreign = "\x1b[31m<b>\x00]]>&\udcff\uffff"
    first = {"code": "LEGAL", "what": foreign, "why": "", "fix": "", "place": ""}
    suite = ElementTree.fromstring(junit({**document, "violations": [first]}, f"{foreign}.sh"))
    failure = next(suite.iter("failure"))
    assert failure.text is not None
    assert failure.text.startswith(r"\x1b[31m<b>\x00]]>&\udcff\uffff")


def test_whose_file_it_is_follows_from_its_text(script: Path, tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text(
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}'
    )
    assert check("llama-3-8b", cluster=GPUS, source=script, search=False).name.startswith("tp8")
    assert check("llama-3-8b", cluster=GPUS, source=config, search=False).name.startswith("dp8.z3")
    config.write_text("{}")
    with pytest.raises(InputError, match="is not recognised"):
        check("llama-3-8b", cluster=GPUS, source=config)


def test_secrets_of_the_environment_are_never_said(script: Path) -> None:
    script.write_text("export WANDB_API_KEY=sk-123456\n" + SCRIPT + ' --wandb-key "$HF_TOKEN"\n')
    report = check("llama-3-8b", cluster=GPUS, source=script, search=False, environment="HF_TOKEN=hf_abcdef")
    said = json.dumps(report.to_dict(), default=str)
    assert "sk-123456" not in said
    assert "hf_abcdef" not in said


DEEPSPEED = """#!/bin/bash
STAGE=${STAGE:-3}
cat > ds_config.json <<JSON
{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
 "zero_optimization": {"stage": $STAGE}, "bf16": {"enabled": true}}
JSON
deepspeed --num_gpus 8 finetune.py --deepspeed ./ds_config.json --per_device_train_batch_size 2 \\
  --gradient_accumulation_steps $STEPS --optim adamw_torch --gradient_checkpointing True
"""


def test_a_script_of_deepspeed_is_read_with_the_file_it_writes(tmp_path: Path) -> None:
    script = tmp_path / "finetune.sh"
    script.write_text(DEEPSPEED)

    def checked(*environment: str):
        return check(
            "llama-3-8b", cluster=GPUS, source=script, source_format="deepspeed", search=False, environment=environment
        )

    assert [violation.fix for violation in checked().violations] == ["give --env STEPS=VALUE"]
    assert checked("STEPS=4").name == "dp8.z3.mbs2.gbs64.rc-full"
    assert checked("STEPS=1", "STAGE=2").name.startswith("dp8.z2.mbs2.gbs16.rc-full")


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ('"fp16": {"enabled": true}, "bf16": {"enabled": true}', "fp16.enabled", "not with both"),
        ('"bf16": {"enabled": true}, "optimizer": {"type": "OneBitLamb"}', "optimizer.type", "adamw, lion"),
    ],
)
def test_what_deepspeed_does_not_start_or_nobody_can_price_is_said(
    tmp_path: Path, more: str, field: str, value: str
) -> None:
    config = tmp_path / "ds.json"
    config.write_text('{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, ' + more + "}")
    found = check("llama-3-8b", cluster=GPUS, source=config, source_format="deepspeed", search=False).violations
    assert any(one.what.startswith(field) and value in one.why for one in found)


def test_the_optimizer_of_a_deepspeed_configuration_counts(tmp_path: Path) -> None:
    """Lion keeps one moment, Adam two."""
    config, needed = tmp_path / "ds.json", {}
    for kind in ("AdamW", "Lion"):
        config.write_text(
            '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, '
            f'"zero_optimization": {{"stage": 3}}, "optimizer": {{"type": "{kind}"}}}}'
        )
        checked = check("llama-3-8b", cluster=GPUS, source=config, source_format="deepspeed", search=False)
        needed[kind] = max(dict(stage.memory_bytes)["optimizer"] for stage in checked.estimate.stages)
    assert needed["Lion"] < needed["AdamW"]


def test_a_trainer_is_read_with_its_model_and_lengths(tmp_path: Path) -> None:
    """What the program around the trainer says counts too; what nobody knows of it is listed."""
    (tmp_path / "fsdp.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
    )
    script = tmp_path / "sft.sh"
    script.write_text(
        "#!/bin/bash\naccelerate launch --config_file fsdp.yaml sft.py --model_name_or_path Qwen/Qwen3-8B --bf16 True "
        "--per_device_train_batch_size 1 --max_seq_length 2048 --use_peft --lora_r 8 "
        "--lora_target_modules q_proj v_proj --load_in_4bit --learning_rate 2e-5\n"
    )
    report = check(script, cluster="8xA100-80", search=False)
    assert report.inputs.model.name == "qwen3-8b"
    assert report.inputs.workload.seq_len == 2048
    tuning = report.inputs.model.tuning
    assert tuning is not None
    assert tuning.lora is not None
    assert (tuning.lora.rank, tuning.lora.targets, tuning.lora.base) == (8, ("q_proj", "v_proj"), "nf4")
    assert any("not read: --learning_rate" in text for text in report.warnings)
    text = script.read_text()
    script.write_text(text.replace("--lora_target_modules q_proj v_proj ", ""))
    assert any(
        "query and value projections" in note for note in check(script, cluster="8xA100-80", search=False).warnings
    )
    script.write_text(text.replace("--max_seq_length 2048", "--max_seq_length $(cat length)"))
    asked = check(script, cluster="8xA100-80").violations
    assert [v.what for v in asked if v.code == "ASK"] == ["--max_seq_length is not known"]
    script.write_text(text)
    other = check("llama-3.1-8b", cluster="8xA100-80", source=script, search=False)
    assert [v.what for v in other.violations] == ["the script's model is Qwen/Qwen3-8B"]
    script.write_text(script.read_text().replace("Qwen/Qwen3-8B", "acme/their-own"))
    assert check(script, cluster="8xA100-80").violations[0].what == "the model is not available: acme/their-own"


TRAINER = (
    "--model_name_or_path Qwen/Qwen3-1.7B --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 True "
    "--gradient_checkpointing True --max_length 4096\n"
)
WIZARD = "compute_environment: LOCAL_MACHINE\ndowncast_bf16: 'no'\nmixed_precision: bf16\nnum_processes: 8\n"
"""What every file that `accelerate config` writes holds."""


def test_auto_in_a_configuration_of_deepspeed_is_what_the_trainer_says(tmp_path: Path) -> None:
    """As examples of the transformers library have it: bf16, batch sizes and buckets are all auto."""
    buckets = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    zero = {"stage": 3, **dict.fromkeys(buckets, "auto")}
    batch = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    config = {**dict.fromkeys(batch, "auto"), "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    (tmp_path / "z3.json").write_text(json.dumps({**config, "zero_optimization": zero}))
    script = tmp_path / "sft.sh"
    script.write_text(f"#!/bin/bash\ndeepspeed --num_gpus 8 train.py --deepspeed z3.json {TRAINER}")
    report = check(script, cluster=GPUS, search=False)
    assert not report.violations
    assert report.name == "dp8.z3.mbs2.gbs64.rc-full"
    assert report.inputs.workload.precision.name == "bf16"
    script.write_text(script.read_text().replace("--bf16", "--fp16"))
    assert check(script, cluster=GPUS, search=False).inputs.workload.precision.name == "fp16"


@pytest.mark.parametrize(
    ("engine", "plan"),
    [
        ("distributed_type: MULTI_GPU\n", "dp8.mbs2.gbs64.rc-full"),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", "dp8.fsdp.mbs2.gbs64.rc-full"),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1\n", "dp8.fsdp.mbs2.gbs64.rc-full"),
        (
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n",
            "dp8.fsdp-keep.mbs2.gbs64.rc-full",
        ),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\n",
            "dp8.z2.mbs2.gbs64.rc-full.off-og.nodpov",
        ),
    ],
)
def test_what_accelerate_config_writes_is_read(tmp_path: Path, engine: str, plan: str) -> None:
    (tmp_path / "made.yaml").write_text(WIZARD + engine)
    script = tmp_path / "sft.sh"
    script.write_text(f"accelerate launch --config_file made.yaml sft.py {TRAINER}")
    report = check(script, cluster=GPUS, search=False)
    assert not report.violations
    assert report.name == plan


PLAIN = "sft.py --model_name_or_path Qwen/Qwen3-1.7B --per_device_train_batch_size 2 --gradient_accumulation_steps 4"


@pytest.mark.parametrize(
    ("command", "plan"),
    [
        (f"torchrun --nproc_per_node=8 {PLAIN} --bf16", "dp8.mbs2.gbs64"),
        (f"torchrun --nproc_per_node=8 {PLAIN} --bf16 --fsdp 'full_shard auto_wrap'", "dp8.fsdp.mbs2.gbs64"),
        (f"torchrun --nproc_per_node=8 {PLAIN} --fp16 --fsdp shard_grad_op", "dp8.fsdp-keep.mbs2.gbs64"),
        (f"accelerate launch --num_processes 8 --mixed_precision bf16 {PLAIN}", "dp8.mbs2.gbs64"),
        (f"accelerate launch --use_fsdp --mixed_precision bf16 {PLAIN}", "dp8.fsdp.mbs2.gbs64"),
    ],
)
def test_options_alone_say_how_a_trainer_is_started(tmp_path: Path, command: str, plan: str) -> None:
    script = tmp_path / "sft.sh"
    script.write_text(f"#!/bin/bash\n{command} --max_length 1024\n")
    report = check(script, cluster=GPUS, search=False)
    assert report.name == plan
    assert report.inputs is not None
    assert report.inputs.workload.precision.name == ("fp16" if "--fp16" in command else "bf16")
    assert not any("processes" in note for note in report.warnings)
    script.write_text(script.read_text().replace("sft.py", "dpo.py"))
    with pytest.raises(InputError, match=r"dpo\.py is started"):
        check(script, cluster=GPUS, search=False)


def test_a_tokenizer_that_only_the_environment_knows_is_no_question(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 "
        "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
        "--global-batch-size 64 --bf16 --tokenizer-type Llama2Tokenizer --tokenizer-model $TOKENIZER\n"
    )
    report = check(script, cluster="8xA100-80", search=False)
    assert any("32,000 tokens" in note for note in report.warnings)
    script.write_text(script.read_text().replace("Llama2Tokenizer", "HuggingFaceTokenizer"))
    report = check(script, cluster="8xA100-80", search=False)
    assert [v.what for v in report.violations] == ["the vocabulary is not known"]


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ("--vocab-file /data/gpt2-vocab.json --merge-file /data/gpt2-merges.txt", 50_257),  # the program's own default
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model /data/tokenizers/llama-3.2-1b", 128_256),
        ("--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model data/llama-7b/tokenizer.model", 32_000),
        ("--tokenizer-type BertWordPieceLowerCase --vocab-file /data/vocab.txt", None),
    ],
)
def test_a_vocabulary_is_that_of_the_tokenizer_that_is_named(tmp_path: Path, said: str, tokens: int | None) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 "
        "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
        f"--global-batch-size 64 --bf16 {said}\n"
    )
    report = check(script, cluster="8xA100-80", search=False)
    if tokens is None:
        assert "the vocabulary is not known" in [v.what for v in report.violations]
    else:
        assert any(f"{tokens:,} tokens" in note for note in report.warnings)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        (
            "/data/hub/models--meta-llama--Llama-2-7b-hf/snapshots/01c7f73d771dfac7d292323805ebc428287df4f9",
            "llama-2-7b",
        ),
        ("/data/Llama-2-7b-hf/", "llama-2-7b"),
        ("/data/llama3-8b-instruct", "llama-3-8b"),
        ("mirror/qwen3-8b-base", "qwen3-8b"),
        ("/data/llama-2-7b/pruned", None),
        ("/data/llama-2-7b-pruned", None),
    ],
)
def test_a_model_is_known_by_the_end_of_its_path(tmp_path: Path, path: str, model: str | None) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        f"#!/bin/bash\ntorchrun --nproc_per_node 8 run_clm.py --model_name_or_path {path} --bf16 --block_size 1024 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 1\n"
    )
    report = check(script, cluster="8xA100-80", search=False)
    if model is None:
        assert f"the model is not available: {path}" in [v.what for v in report.violations]
    else:
        assert report.inputs is not None
        assert report.inputs.model.name == model


@pytest.mark.parametrize(
    "program", ["tools/model_hf_to_mg.py", "data_efficiency/analyze_data.py", "examples/chatbot.py"]
)
def test_a_script_that_trains_nothing_is_refused(tmp_path: Path, program: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.replace("pretrain_gpt.py", program))
    with pytest.raises(InputError, match="does not train a model"):
        check("llama-3-8b", cluster=GPUS, source=path, search=False)


def test_a_configuration_that_is_named_and_is_not_here_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "tune.sh"
    path.write_text(
        "torchrun --nproc_per_node=8 run_clm.py --model_name_or_path llama-3-8b "
        "--per_device_train_batch_size 4 --deepspeed_config config/zero.json\n"
    )
    with pytest.raises(InputError, match=r"config/zero\.json is not here"):
        check(path, cluster=GPUS, search=False)


def test_another_model_is_told_before_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "retro.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_t5.py --num-layers 12 --tensor-model-parallel-size 1 "
        "--micro-batch-size 2\n"
    )
    assert "trains an encoder and a decoder" in check(path, cluster=GPUS, search=False).violations[0].what


@pytest.mark.parametrize(("task", "what"), [("MNLI", "an encoder"), ("RET-FINETUNE-NQ", "a retriever")])
def test_a_classifier_is_no_decoder(tmp_path: Path, task: str, what: str) -> None:
    """`tasks/main.py` has the options of a decoder, and fine-tunes BERT."""
    path = tmp_path / "finetune.sh"
    path.write_text(SCRIPT.replace("pretrain_gpt.py", f"tasks/main.py --task {task}"))
    report = check("llama-3-8b", cluster=GPUS, source=path, search=False)
    assert any(f"fine-tunes {what} for {task}" in one.what for one in report.violations)
