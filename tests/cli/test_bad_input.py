"""Bad input: one clear error with code, all problems together, the nearest names, the exit code, nothing written.

Each row is what a user types, the exit code, and words that must be in the message. `BAD/...` are the files below.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.files import DEVICE, SMALL_LLAMA

GIB = 2**30


def write_files(folder: Path) -> None:
    """Files that are not what a verb asks for."""

    def put(name: str, text: str) -> None:
        (folder / name).write_text(text)

    (folder / "folder").mkdir()
    put("empty", "")
    (folder / "binary").write_bytes(b"\x93NUMPY\x00\x01\xff\xfe" * 64)
    with (folder / "huge").open("wb") as stream:
        stream.truncate(GIB)  # sparse: takes no room on the disk
    for name in ("empty", "binary", "huge"):
        for suffix in ("json", "toml", "csv"):
            (folder / f"{name}.{suffix}").symlink_to(folder / name)
    put("broken.json", '{"model_type": "llama", ')
    put("list.json", "[1, 2]")
    put("nan.json", json.dumps(SMALL_LLAMA | {"hidden_size": float("nan")}))
    put("no-model.json", json.dumps({"learning_rate": 3e-4, "steps": 1000}))
    put("no-family.json", json.dumps(SMALL_LLAMA | {"model_type": "lama", "mystery_ffn_size": 7}))
    put("wrong.json", json.dumps(SMALL_LLAMA | {"hidden_size": -1, "num_hidden_layers": "many", "vocab_size": 0}))
    put("missing.json", json.dumps({k: v for k, v in SMALL_LLAMA.items() if k not in ("hidden_size", "vocab_size")}))
    put("model.json", json.dumps(SMALL_LLAMA))
    put("cluster.toml", '[[group]]\ndevice = "H1000"\nnodes = 0\ndevices_per_node = -8\nzoen = "a"\n')
    put("nan.toml", '[[group]]\ndevice = "H100"\nnodes = 1\ndevices_per_node = 8\nintra_gb_s = nan\n')
    put("broken.toml", "[[group]\n")
    put("none.toml", "# nothing\n")
    put("sparse.toml", DEVICE.replace("989.4", "1979"))
    put("bits.toml", DEVICE + "[node]\ndevices = 8\nscaleup_gb_s = 450\nfabric_gb_s = 400\n")
    put("gpu.toml", DEVICE.replace("hopper", "hoper").replace("79.1", "nan") + "memmory = 3\n")
    put("good.toml", DEVICE)
    put("plan.json", '{"schema": "meshwright.plan/2"}')
    put("set.json", '{"schema": "meshwright.plan-set/1", "plans": []}')
    put("half.json", '{"schema": "meshwright.plan/1", "pipelines": 3}')
    put("script.sh", "torchrun pretrain_gpt.py --tensor-model-paralel-size 8 --num-layers many\n")
    put("columns.csv", "a,b\n1,2\n")


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("bad")
    write_files(folder)
    yield folder
    (folder / "huge").unlink()


PLAN = "plan llama-3-8b --gpus 8xH100"
ESTIMATE = "estimate llama-3-8b --gpus 8xH100 --plan"
CHECK = "check llama-3-8b --gpus 8xH100 --plan"
LONG = "a" * 300
"""Longer than the name of any file."""
MOE = "estimate mixtral-8x7b --gpus 8xH100 --plan"

COMMAND_LINE = [
    ("paln", 2, "unknown verb 'paln'", "plan"),
    ("replan", 4, "no verb 'replan'", "--replan-from PLAN"),
    ("fit", 4, "no verb 'fit'", "`meshwright calibrate MEASURED.csv"),
    ("plan llama-3-8b --gpu 8xH100", 2, "unknown option --gpu", "--gpus"),
    ("plan llama-3-8b --gpus 8xH100 --export megatron", 2, "--export", "meshwright export plans.json#1 --to TARGET"),
    ("plan llama-3-8b --gpus 8xH100 --out x", 2, "--out", "did you mean --output"),
    ("plan llama-3-8b 8xH100", 2, "no place for 8xH100", "did you mean --gpus 8xH100?"),
    ("compare llama-3-8b tp8 tp4 --gpus 8xH100", 2, "no place for tp4", "compare PLAN PLAN --model MODEL"),
    ("explain llama-3-8b --plan tp8 --gpus 8xH100", 2, "unknown option --plan", "explain PLAN --model MODEL"),
    ("export --plan tp8 --to megatron", 2, "unknown option --plan", "the plan needs no option"),
    ("export tp8 --to megatron -o launch", 2, "'tp8' is no plan file", "add --model"),
    ("doctor now", 2, "no place for now", "doctor --help"),
    ("plan llama-3-8b --gpus 8xH100 --sqe 4096 --gsb 8 --dytpe bf16", 2, "--seq", "--gbs", "--dtype"),
    ("plan llama-3-8b --gpus 8xH100 --batch-size 8 --tp 2 --zero 1", 2, "--gbs?", "--pin tp=", "--pin sharding="),
    ("plan --model llama-3-8b --gpus 8xH100", 2, "`meshwright plan MODEL`"),
    (f"{ESTIMATE} tp2 --tensor-parallel-size 2", 2, "tp is part of what --plan states"),
    ("plan llama-3-8b surplus --gpus 8xH100", 2, "surplus"),
    ("plan llama-3-8b --gpus", 2, "--gpus"),
    ("plan", 2, "no model is given", "no cluster is given"),
    ("estimate", 2, "no model is given", "no cluster is given", "--plan is missing"),
    ("export", 2, "PLAN is missing", "--to is missing", "-o DIR is missing"),
    ("models show", 2, "MODEL is missing"),
    ("models add", 2, "FILE is missing"),
    ("gpus show", 2, "GPU is missing"),
    ("gpus lst", 2, "unknown verb 'lst'", "list"),
    ("validate", 2, "MEASURED.csv is missing"),
    ("calibrate", 2, "MEASURED.csv is missing"),
    ("schedule", 2, "NAME is missing", "--p is missing", "--m is missing"),
    ("schedule , --p 4 --m 8", 2, "NAME is missing"),
    ("schedule zb-h2,dualpipe --p 4 --m 3 --waves 2", 2, "zb-h2: m = 3", "dualpipe: m = 3", "none of zb-h2"),
    ("schedule 1f1b,hanayoo --p 4 --m 3", 4, "unknown schedule 'hanayoo'", "hanayo"),
    ("schedule 1f1b --p 4 --m 3 --svg no/where.svg", 2, "no/where.svg"),
    ("trace", 2, "PLAN is missing"),
    ("trace tp2", 2, "--model is missing"),
    ("trace tp2 --model gpt2", 2, "no cluster is given"),
    ("trace plan.json -o no/where.json --svg no/where.svg", 2, "no/where.json", "no/where.svg"),
    (f"{PLAN} --profiles dir", 2, "--gbs is missing"),
    (f"{PLAN} --profiles dir --gbs 8 --objective memory", 2, "--objective memory with --profiles"),
    (f"{PLAN} --profiles dir --gbs 8 --days 3 --tokens 1T", 2, "--days with --profiles", "--tokens with --profiles"),
    (f"{PLAN} --profiles dir --gbs 8 --max-step-time soon", 2, "--max-step-time is 'soon'"),
    (
        f"{PLAN} --max-step-time 0 --max-price-per-step x --gbs nine",
        2,
        "--max-step-time",
        "--max-price-per-step",
        "gbs",
    ),
    (f"{PLAN} --days 30", 2, "--days without --tokens"),
    (f"{PLAN} --max-price-per-step 1", 2, "no price is known for", "--price"),
    (f"{PLAN} --profiles dir --gbs 8", 2, "profiles 'dir' are no folder", "layer_times.csv"),
    (f"{PLAN} --replan-from p.json --lost 8xH100", 2, "MODEL with --replan-from", "--gpus with --replan-from"),
    ("plan --replan-from p.json --lost 1 --max-step-time 4", 2, "--max-step-time with --replan-from"),
    ("plan --replan-from p.json", 2, "--lost or --added is missing"),
    ("plan --lost 8xH100", 2, "--replan-from is missing"),
    (f"{PLAN} --seq 0 --top x", 2, "MW206", "--seq is '0'", "--top is 'x'"),
    ("size llama-3-8b --device H100 --days 3", 2, "MW206", "--tokens is missing"),
    (
        "size llama-3.2-1b --device H100 --step-time 1 --optimizer adamw:layerwise=1",
        4,
        "MW406",
        "a search with",
        "or leave layerwise out",
    ),
    ("compare p.json#1 p.json#2 p.json#3", 2, "MW206", "no place for p.json#3", "two at a time"),
    ("run gpt-tiny --plan pp2 --devices 99999999", 2, "--devices is '99999999'", "1,024"),
    (f"plan llama-3-8b --cluster {LONG}", 2, "is not understood"),
    (f"explain {LONG}", 2, "is no plan file"),
    ("explain gpt2", 2, "find one with `meshwright plan gpt2"),
    (f"explain {LONG}#1", 2, "is no plan file"),
    (f"{ESTIMATE} {LONG}", 2, "unknown token"),
    (f"{ESTIMATE} pp4.hanayo-waves2", 2, "hanayo: vpp = 1", "fix: vpp4"),
    (f"{PLAN} --pin tp=x", 2, "pin tp=x", "for example tp=8"),
    (f"{PLAN} --pin tp=2 --pin tp=4", 2, "tp is fixed to 2 already"),
    ("gpus show nope", 4, "`meshwright gpus list` shows all"),
]
NAMES = [
    ("plan llama-3-8bb --gpus 8xH100", 4, "unknown model 'llama-3-8bb'", "llama-3-8b"),
    ("plan nobody/knows-this --gpus 8xH100", 4, "unknown model", "config.json"),
    ("plan llama-3-8b --gpus 8xH1000", 4, "unknown device 'H1000'", "H100"),
    ("plan llama-3-8b --gpus 2x9999XYZ", 4, "unknown device '9999XYZ'", "gpus list"),
    (f"{PLAN} --dtype bf17", 4, "unknown dtype 'bf17'", "bf16"),
    (f"{PLAN} --optimizer adamm", 4, "unknown optimizer 'adamm'", "adam"),
    (f"{PLAN} --lora r=16,targets=q_prj", 2, "LoRA target 'q_prj' matches no module", "did you mean q_proj"),
    (f"{PLAN} --lora r=0,base=nf5", 2, "r is '0'", "base is 'nf5'", "did you mean nf4"),
    (f"{PLAN} --lora r=1025,targets=k_proj", 2, "above the width 1024 of k_proj"),
    (f"{PLAN} --freeze atention", 2, "--freeze atention", "did you mean attention"),
    (f"{PLAN} --freeze embedding,head,layers", 2, "freezes everything"),
    (f"{PLAN} --lora r=16 --freeze mlp", 2, "both --lora and --freeze"),
    (f"{PLAN} --target megatrn", 4, "unknown target 'megatrn'", "megatron"),
    (f"{PLAN} --objective spead", (2, 4), "unknown objective 'spead'", "time"),
    (f"{PLAN} --schedule zb-h9", (2, 4), "unknown schedule 'zb-h9'", "zb-h1"),
    (f"{PLAN} --schedule mobius", (2, 4), "schedule 'mobius' in a search", "paged from host memory"),
    (f"{PLAN} --pin tpp=8 --forbid nothing", 2, "tpp", "nothing"),
    ("schedule list --p 4 --tf 2", 2, "--p is given", "--tf is given", "the list is of all schedules"),
    ("schedule 1f1bb", (2, 4), "--p is missing", "--m is missing", "unknown schedule '1f1bb'"),
    ("schedule 1f1bb --p 4 --m 8", 4, "unknown schedule '1f1bb'", "1f1b"),
    ("gpus show H1000", 4, "unknown device 'H1000'", "H100"),
    ("models show lama-3-8b", 4, "unknown model", "llama-3-8b"),
    ("export plan.json --to megatrn -o out", 4, "unknown target 'megatrn'", "megatron"),
    ("plan llama-3-8bb --gpus 8xH1000 --dtype bf17 --optimizer adamm", 4, "8bb", "H1000", "bf17", "adamm"),
]
NUMBERS = [
    (f"{PLAN} --seq 0", 2, "--seq is '0'"),
    (f"{PLAN} --seq -4096", 2, "--seq is '-4096'"),
    (f"{PLAN} --seq nan", 2, "--seq is 'nan'"),
    (f"{PLAN} --seq 4096.5", 2, "--seq is '4096.5'"),
    (f"{PLAN} --seq 99999999999999999999", 2, "--seq is '99999999999999999999'"),
    (f"{PLAN} --gbs many", 2, "--gbs is 'many'"),
    (f"{PLAN} --gbs 1e300", 2, "--gbs is '1e300'"),
    (f"{PLAN} --gbs 1048577", 2, "1,048,577 sequences", "at most 1,048,576"),
    (f"{PLAN} --seq 1 --tokens-per-step 1e12", 2, "at most 1,048,576"),
    (f"{PLAN} --gbs 8 --tokens-per-step 4096", 2, "both a global batch and tokens per step"),
    (f"{PLAN} --tokens inf", 2, "tokens is 'inf'"),
    (f"{PLAN} --price -1", 2, "--price is '-1'"),
    (f"{PLAN} --price nan", 2, "--price is 'nan'"),
    (f"{PLAN} --top 0", 2, "--top is '0'"),
    (f"{PLAN} --top 1.5", 2, "--top is '1.5'"),
    (f"{PLAN} --top 100000000000", 2, "--top is"),
    (f"{PLAN} --seq -1 --gbs 0 --top x --price -2", 2, "--seq", "--gbs", "--top", "--price"),
    ("schedule 1f1b --p 0 --m -2 --tf nan --tc -1", 2, "--p is '0'", "--m is '-2'", "--tf is 'nan'", "--tc is '-1'"),
    ("schedule interleaved --p 4 --m 9 --v 2", 2, "m = 9", "m = 8"),
    ("schedule 1f1b --p 4 --m 8 --v 3", 2, "v = 3", "v = 1"),
    ("schedule 1f1b --p 4 --m 8 --warmup pc", 2, "warmup = 'pc'", "pa or pb"),
    ("schedule 1f1b --p 4 --m 8 --room 2", 2, "--room is given", "schedule best"),
    ("schedule best --m 8", 2, "--p is missing"),
    ("schedule best --p 4 --m 8 --allow 1f2b", 4, "unknown schedule '1f2b'", "1f1b"),
    ("schedule best --p 4 --m 8 --room 0.5", 3, "fits", "0.5"),
    ("schedule best --p 4 --m 8 --released-by-input 0.5", 2, "--released-by-input is given", "state --room"),
    ("schedule best --p 4 --m 8 --room 4 --released-by-input 2", 2, "--released-by-input is '2'"),
    ("schedule best --m 8 --times nowhere.csv", 2, "nowhere.csv", "no such file"),
    ("schedule gpipe --p 1024 --m 1000000000", 2, "at most 300,000"),
    ("validate BAD/columns.csv --fail-above nan", 2, "--fail-above is 'nan'"),
]
SIZES = [
    ("size llama-3-8b", 2, "--device is missing", "--days, --step-time or --max-price is missing"),
    ("size llama-3-8b --device H1000 --step-time 1", 4, "unknown device 'H1000'", "H100"),
    ("size llama-3-8b --device H100 --days 3", 2, "--tokens is missing"),
    ("size llama-3-8bb --device H100 --step-time nan", 2, "--step-time is 'nan'", "unknown model"),
    ("size llama-3-8b --device H100 --step-time -1 --price inf", 2, "--step-time is '-1'", "--price is 'inf'"),
]
CLUSTERS = [
    ("plan llama-3-8b --gpus 0xH100", 2, "0xH100"),
    ("plan llama-3-8b --gpus -8xH100", 2, "-8xH100"),
    ("plan llama-3-8b --gpus H100", 2, "H100"),
    ("plan llama-3-8b --gpus 8xH100 --cluster BAD/nan.toml", 2, "both --gpus and --cluster"),
    ("plan llama-3-8b --gpus 1048577xH100", 2, "1,048,576"),
    ("plan llama-3-8b --gpus 99999999999999999999xH100", 2, "1,048,576"),
    ("plan llama-3-8b --gpus 32xA100-80,64xH100 --pareto", 4, "--pareto with several groups"),
    ("tune llama-3-8b --gpus 32xA100-80,64xH100", 4, "one kind of node", "--gpus"),
    ("plan llama-3-8b --cluster BAD/cluster.toml", 2, "H1000", "nodes", "devices_per_node", "zoen"),
    ("plan llama-3-8b --cluster BAD/nan.toml", 2, "intra_gb_s"),
    ("plan llama-3-8b --cluster BAD/broken.toml", 2, "not valid TOML"),
    ("plan llama-3-8b --cluster BAD/none.toml", 2, "group"),
    ("plan llama-3-8b --cluster BAD/absent.toml", 2, "no such file"),
    ("plan llama-3-8b --cluster BAD/folder", 2, "folder"),
    ("plan llama-3-8b --cluster BAD/empty.toml", 2, "empty"),
    ("plan llama-3-8b --cluster BAD/binary.toml", 2, "binary"),
    ("plan llama-3-8b --cluster BAD/huge.toml", 2, "too large"),
]
MODELS = [
    ("plan BAD/absent.json --gpus 8xH100", 2, "no file or folder"),
    ("plan BAD/folder --gpus 8xH100", 2, "config.json"),
    ("plan BAD/empty.json --gpus 8xH100", 2, "empty"),
    ("plan BAD/binary.json --gpus 8xH100", 2, "not text"),
    ("plan BAD/huge.json --gpus 8xH100", 2, "larger than"),
    ("plan BAD/broken.json --gpus 8xH100", 2, "not JSON", "line 1"),
    ("plan BAD/list.json --gpus 8xH100", 2, "object"),
    ("plan BAD/no-model.json --gpus 8xH100", 2, "model_type"),
    ("plan BAD/no-family.json --gpus 8xH100", 4, "mystery_ffn_size"),
    ("plan BAD/nan.json --gpus 8xH100", 2, "hidden_size"),
    ("plan BAD/wrong.json --gpus 8xH100", 2, "hidden_size", "num_hidden_layers", "vocab_size"),
    ("plan BAD/missing.json --gpus 8xH100", 2, "hidden_size", "vocab_size"),
    ("plan BAD/wrong.json --gpus 0xH100 --dtype bf17", 2, "hidden_size", "0xH100", "bf17"),
    ("models add BAD/model.json --name x", 2, "MESHWRIGHT_LIBRARY"),
    ("models add BAD/wrong.json --library lib", 2, "hidden_size", "vocab_size"),
    ("models add BAD/model.json --name llama-3-8b --library lib", 2, "built in"),
    ("models add BAD/model.json --name ../x --library lib", 2, "name"),
    ("gpus add BAD/absent.toml --library lib", 2, "no such file"),
    ("gpus add BAD/folder --library lib", 2, "folder"),
    ("gpus add BAD/huge.toml --library lib", 2, "too large"),
    ("gpus add BAD/gpu.toml --library lib", 2, "memory_gib", "memmory"),
    ("gpus add BAD/sparse.toml --library lib", 2, "sparsity"),
    ("gpus add BAD/bits.toml --library lib", 2, "bit"),
    ("gpus add BAD/good.toml", 2, "MESHWRIGHT_LIBRARY"),
    ("gpus add BAD/good.toml --library BAD/empty", 2, "cannot be written"),
]
PLANS = [
    (f"{ESTIMATE} tp3", 2, "tp 3", "heads"),
    (f"{ESTIMATE} tp8.pp4", 2, "8 devices"),
    (f"{ESTIMATE} tp2.pp2.dp3", 2, "8 devices"),
    (f"{ESTIMATE} pp8.vpp5.gbs64", 2, "layers"),
    (f"{ESTIMATE} dp8.mbs3.gbs64", 2, "64", "24"),
    (f"{ESTIMATE} dp8.gbs4", 2, "4", "8"),
    (f"{ESTIMATE} tp0.dp-1", 2, "tp is 0", "dp-1"),
    (f"{ESTIMATE} tp8.tp4.zz9", 2, "second time", "unknown token 'zz9'"),
    (f"{ESTIMATE} tp99999999999999", 2, "unknown token"),
    (f"{ESTIMATE} tp8.dpp2.rc-sell", 2, "dpp2", "rc-sel"),
    (f"{ESTIMATE} ep2", 2, "ep"),
    (f"{MOE} ep3.dp8", 2, "ep 3", "8 experts"),
    (f"{MOE} ep8.etp3.dp8", 2, "etp 3"),
    (f"{ESTIMATE} BAD/absent.json", 2, "no such file"),
    (f"{ESTIMATE} BAD/plan.json", 2, "meshwright.plan/2", "meshwright.plan/1"),
    ("export BAD/absent.json --to megatron -o out", 2, "no such file"),
    ("export BAD/folder --to megatron -o out", 2, "folder"),
    ("export BAD/empty.json --to megatron -o out", 2, "empty"),
    ("export BAD/binary.json --to megatron -o out", 2, "binary"),
    ("export BAD/huge.json --to megatron -o out", 2, "too large"),
    ("export BAD/broken.json --to megatron -o out", 2, "not JSON"),
    ("export BAD/list.json --to megatron -o out", 2, "no object"),
    ("export BAD/plan.json --to megatron -o out", 2, "meshwright.plan/2"),
    ("export BAD/set.json --to megatron -o out", 2, "at least one plan"),
    ("export BAD/half.json --to megatron -o out", 2, "model", "cluster", "workload", "strategies", "pipelines"),
    ("export tp8.pp4 --to megatron -o out", 2, "no plan file"),
    ("explain tp8.pp4", 2, "no plan file"),
    ("explain BAD/absent.json", 2, "no such file"),
    ("compare BAD/absent.json BAD/binary.json", 2, "no such file", "binary"),
    ("check llama-3-8b --gpus 8xH100 --from megatron BAD/absent.sh", 2, "no such file"),
    ("check llama-3-8b --gpus 8xH100 --from megatron BAD/huge", 2, "too large"),
    ("check llama-3-8b --gpus 8xH100 --from megatrn BAD/script.sh", 4, "megatrn", "megatron"),
    (f"{PLAN} -o BAD/folder", 2, "it is a folder"),
    (f"{PLAN} -o BAD/absent/plans.json", 2, "no folder"),
]
MEASURED = [
    ("validate BAD/absent.csv", 2, "no such file"),
    ("calibrate BAD/absent.csv", 2, "no such file"),
    ("validate BAD/folder", 2, "folder"),
    ("validate BAD/empty.csv", 2, "empty"),
    ("validate BAD/binary.csv", 2, "binary"),
    ("validate BAD/huge.csv", 2, "too large"),
    ("validate BAD/columns.csv", 2, "column"),
]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        pytest.param(line, code, words, id=line)
        for line, code, *words in (*COMMAND_LINE, *NAMES, *NUMBERS, *SIZES, *CLUSTERS, *MODELS, *PLANS, *MEASURED)
    ],
)
def test_bad_input(
    run: Run, bad: Path, tmp_path: Path, line: str, code: int | tuple[int, ...], words: list[str]
) -> None:
    before = sorted(path.name for path in bad.rglob("*"))
    argv = line.replace("BAD", str(bad)).split()

    ran = run(*argv)

    codes = code if isinstance(code, tuple) else (code,)
    assert ran.code in codes, ran.err
    assert ran.out == ""
    assert ran.err.startswith("error[MW")
    assert "Traceback" not in ran.err
    assert "MW100" not in ran.err
    missing = [word for word in words if word not in ran.err]
    assert not missing, ran.err
    assert not list(tmp_path.iterdir()), "something was written"
    assert sorted(path.name for path in bad.rglob("*")) == before

    as_json = run(*argv, "--json")
    assert as_json.code == ran.code
    document = as_json.document
    assert document["schema"] == "meshwright.error/1"
    assert document["exit_code"] == ran.code
    assert len(document["problems"]) == ran.err.count("error[MW")


def test_a_million_devices_are_answered_in_seconds(run: Run) -> None:
    ran = run("plan", "llama-3-8b", "--gpus", "1000000xH100", "--gbs", "1000000", "--json")
    assert ran.code in (0, 3)
    assert ran.document["schema"] in ("meshwright.plan-set/1", "meshwright.error/1")


def test_an_empty_pipe(tmp_path: Path) -> None:
    code = "import sys; from meshwright.cli import main; sys.exit(main(['plan', '-', '--gpus', '8xH100']))"
    ran = subprocess.run(
        [sys.executable, "-c", code], input="", capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ran.returncode == 2
    assert "standard input is empty" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_gibibyte_is_refused_unread(bad: Path, tmp_path: Path) -> None:
    """In a process that may not have so much memory."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (900 * 2**20, 900 * 2**20))\n"
        "from meshwright.cli import main\n"
        f"sys.exit(main(['plan', {str(bad / 'huge.json')!r}, '--gpus', '8xH100']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 2, ran.stderr
    assert "larger than" in ran.stderr


def test_everything_wrong_with_plan_comes_at_once_in_the_words_typed(run: Run) -> None:
    ran = run(
        *(
            "plan",
            "llama-3-8b",
            "--gpus",
            "8xH100",
            "--seq",
            "0",
            "--gbs",
            "-1",
            "--pin",
            "tq=8",
            "--forbid",
            "sharding=z9",
        ),
        *("--schedule", "1f2b", "--json"),
    )
    assert ran.code == 2
    problems = ran.document["problems"]
    assert len(problems) == 5
    whats = " ".join(problem["what"] for problem in problems)
    assert "--seq is '0'" in whats
    assert "--gbs is '-1'" in whats
    assert "tq" in whats
    assert "sharding=z9" in whats
    assert "1f2b" in whats


@pytest.mark.parametrize("value", ["0", "-1", "nan", "1.5", "x"])
@pytest.mark.parametrize("option", ["--seq", "--gbs"])
def test_counts_that_are_none_say_the_rule(run: Run, option: str, value: str) -> None:
    ran = run("plan", "llama-3-8b", "--gpus", "8xH100", option, value)
    assert ran.code == 2
    assert f"{option} is '{value}'" in ran.err
    assert "a whole number of at least 1" in ran.err
    assert "15T" not in ran.err


def test_attention_kernel_and_expert_load_are_options(run: Run) -> None:
    plan = ("estimate", "mixtral-8x7b", "--plan", "tp2.ep4.dp4.z1.rc-full.gbs64", "--gpus", "8xH100", "--json")
    usual = run(*plan).document["plans"][0]["estimate"]["step_time_s"]
    skewed = run(*plan, "--expert-load", "2").document["plans"][0]["estimate"]["step_time_s"]
    kept = run(*plan, "--attention-kernel", "materialised").document["plans"][0]["estimate"]["step_time_s"]
    assert skewed > usual
    assert kept > usual
    assert run(*plan, "--attention-kernel", "flush").code == 2
    assert run(*plan, "--expert-load", "-1").code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan nope --gpus 8xH100", "unknown model 'nope'"),
        ("plan llama-3-8b --gpus 8x8x8xH100", "is not understood"),
        ("check --from megatron train.sh --gpus 8xH100", "train.sh"),
        ("estimate llama-3-8b --plan tp2-pp2-dp2 --gpus 8xH100", "Dots join tokens: tp2.pp2.dp2"),
        ("help plan", "`meshwright VERB --help` describes one"),
        ("export nothere.json --to nemo -o launched", "bridge, automodel"),
        ("size llama-3-8b --device H100 --days 30 --tokens 15", "such as --tokens 15T"),
        ("plan llama-3-8b --gpus 8xH100 --gbs 128 --seq 4096 --tokens 524287", "one step trains on 524,288 tokens"),
    ],
)
def test_what_is_said_is_to_the_point(run: Run, words: str, said: str) -> None:
    ran = run(*words.split())
    assert ran.code in (2, 4)
    assert said in ran.err
    assert "gopher" not in ran.err
    assert ran.err.count("error[") == 1


def test_every_option_without_its_value_is_named_with_what_follows_it(run: Run) -> None:
    ran = run("plan", "gpt2", "--gpus", "--seq", "1024", "--lora", "--top", "2", "--gbs")
    assert ran.code == 2
    for option, why in (("--gpus", "--seq behind it"), ("--lora", "--top behind it"), ("--gbs", "nothing follows")):
        assert f"{option} has no value\n  why: {why}" in ran.err
    assert "--lora r=16" in ran.err
    assert "has no place" not in ran.err
