"""What a launch script starts when bash itself runs it, where every program is a recorder: a measuring tool.

A script of others sees a root of its own: no network, no files of the machine but bash and tools that change text, a
folder that is thrown away. Programs that train, install or download are one program that writes down its words and its
environment, and runs what it was handed (`srun bash -c "..."`). It is one node of eight GPUs, on which files that a
script sources and that are not in its tree are taken as empty, commands that fail do not end it (`set -e`, `set -u`),
and what a template leaves to fill in is a word. A script of our own is run as it is, in its own folder, where no
user namespace is needed. Nothing of the package uses it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 20
TOOLS = (
    *("awk", "gawk", "mawk", "basename", "bash", "cat", "chmod", "cp", "cut", "date", "dirname", "echo", "env", "expr"),
    *("false", "find", "getopt", "grep", "egrep", "head", "hostname", "id", "ls", "mkdir", "mktemp", "mv", "nproc"),
    *("nohup", "printenv", "printf", "pwd", "readlink", "realpath", "rm", "rmdir", "sed", "seq", "sh", "sha256sum"),
    *("sleep", "sort", "stat", "tac", "tail", "tee", "test", "timeout", "touch", "tr", "true", "uname", "uniq", "wc"),
    *("whoami", "xargs", "bc", "paste", "rev", "ln", "numfmt", "shuf"),
)
"""Of the machine; they change no more than the folder that is thrown away."""
STARTERS = (
    *("srun", "mpirun", "mpiexec", "sbatch", "sudo", "docker", "singularity", "apptainer", "enroot", "numactl", "nsys"),
    *("ncu", "flux", "salloc", "xpk", "conda", "stdbuf", "ray", "uv", "poetry", "rocprof", "taskset", "bsub", "qsub"),
    *("bcprun",),
)
"""Recorders that go on with the command they are handed."""
TRAINERS = (
    *("torchrun", "python", "python3", "python3.10", "python3.11", "deepspeed", "ds", "accelerate", "torchx"),
    *("llamafactory-cli", "axolotl", "automodel", "swift", "megatron", "tune", "litgpt", "xtuner", "composer"),
)
OTHERS = (
    *(
        "pip",
        "pip3",
        "git",
        "wget",
        "curl",
        "module",
        "scontrol",
        "sinfo",
        "squeue",
        "scancel",
        "nvidia-smi",
        "rocm-smi",
    ),
    *("ssh", "pdsh", "scp", "rsync", "gcloud", "gsutil", "aws", "kubectl", "tmux", "apt", "apt-get", "make", "cmake"),
    *(
        "huggingface-cli",
        "hf",
        "wandb",
        "ninja",
        "nvcc",
        "lscpu",
        "free",
        "df",
        "du",
        "kill",
        "pkill",
        "ps",
        "ip",
        "jq",
    ),
    *(
        "ifconfig",
        "ibdev2netdev",
        "bc",
        "which",
        "clear",
        "tensorboard",
        "unzip",
        "tar",
        "gzip",
        "node",
        "npm",
        "ulimit",
        "nvidia-cuda-mps-control",
    ),
)

_RECORDER = r"""#!/usr/bin/bash
name=${0##*/}
file=${RECORD_HERE:-/record}/${EPOCHREALTIME/[.,]/}.$$
printf '%s\0' "$name" "$@" >"$file.argv"
/usr/bin/env -0 >"$file.env"
case $name:$* in
  nvidia-smi:*|rocm-smi:*) for one in 0 1 2 3 4 5 6 7; do echo "GPU $one"; done; exit 0 ;;
  python*:*device_count*) echo 8; exit 0 ;;
  conda:run*) ;;
  conda:*) exit 0 ;;
  scontrol:*hostname*) echo node0; exit 0 ;;
  torchrun:*--no-python*|deepspeed:*--no_python*)
    # It starts a program that is not Python, once per rank.
    while [[ $1 != --no[-_]python ]]; do shift; done
    while [[ $1 = --* ]]; do shift; done
    export RANK=0 LOCAL_RANK=0
    exec "$@" ;;
  ssh:*)
    while :; do
      case $1 in
        -[BbcDEeFIiJLlmOopQRSWw]) shift 2 ;;
        -*) shift ;;
        *) break ;;
      esac
    done
    shift
    [ $# -eq 0 ] || exec /usr/bin/bash -c "$*"
    exit 0 ;;
esac
case " STARTERS " in *" $name "*) ;; *) exit 0 ;; esac
case $name in sbatch|qsub|bsub)
  # A job that queues itself again would never end.
  export RECORD_QUEUED=$((${RECORD_QUEUED:-0} + 1))
  [ "$RECORD_QUEUED" -le 2 ] || exit 0 ;;
esac
while [ $# -gt 0 ]; do
  word=${1##*/}
  case $1 in
    --wrap=*|--command=*) exec /usr/bin/bash -c "${1#*=}" ;;
    -c|--cmd) [ "$name" = bcprun ] && exec /usr/bin/bash -c "$2" ;;
    --wrap|--command) exec /usr/bin/bash -c "$2" ;;
  esac
  case " bash sh env TRAINERS STARTERS " in *" $word "*) exec "$word" "${@:2}" ;; esac
  case $1 in *.sh|*.slurm|*.sbatch|*.bash) exec /usr/bin/bash "$@" ;; esac
  shift
done
[ "$name" = sbatch ] && exec /usr/bin/bash -s
exit 0
"""

_PRELUDE = r"""
cd() { [ $# -eq 0 ] || [ "$1" = - ] || mkdir -p -- "$1" 2>/dev/null; builtin cd "$@" >/dev/null 2>&1 || true; }
command_not_found_handle() {
  printf '%s\0' "$@" >"/record/${EPOCHREALTIME/[.,]/}.$$.argv"
}
pushd() { mkdir -p -- "$1" 2>/dev/null; builtin pushd "$@" >/dev/null 2>&1 || true; }
popd() { builtin popd >/dev/null 2>&1 || true; }
module() { :; }
source() { [ -f "$1" ] || return 0; builtin source "$@"; }
function . { [ -f "$1" ] || return 0; builtin source "$@"; }
export -f cd pushd popd command_not_found_handle module source
"""

_SEALED = r"""
set -e
root=$1 bin=$2 tree=$3 record=$4 start=$5 script=$6 limit=$7
shift 7
mount -t tmpfs -o size=256m tmpfs "$root"
mkdir -p "$root"/{usr/bin,usr/lib,usr/lib64,dev,proc,tmp,etc,job,record,root,layers,old}
mkdir -p "$root"/layers/up "$root"/layers/work
ln -s usr/bin "$root/bin"; ln -s usr/lib "$root/lib"; ln -s usr/lib64 "$root/lib64"
mount --rbind "$bin" "$root/usr/bin"
mount --rbind /usr/lib "$root/usr/lib"
mount --rbind /usr/lib64 "$root/usr/lib64"
for part in usr/bin usr/lib usr/lib64; do mount -o remount,bind,ro "$root/$part"; done
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$root/layers/up,workdir=$root/layers/work" "$root/job"
sed -i -E -e 's/^([ \t]*(export )?[A-Za-z_0-9]+=)<[A-Za-z][^<>|&;$`]*>/\1to_fill_in/' \
  -e '/^[[:space:]]*set /s/ -[eu]+($| )/ /g' \
  -e 's/^([[:space:]]*set -[a-zA-Z]*)[eu]{1,2}([a-zA-Z]*)/\1\2/; 1s/ -[eux]+$//' "$root$script"
mount --bind "$record" "$root/record"
mount -t proc proc "$root/proc"
touch "$root"/dev/{null,zero,urandom}
for one in null zero urandom; do mount --bind /dev/$one "$root/dev/$one"; done
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
ulimit -v 2000000 -f 20000 -u 400
exec /usr/sbin/chroot "$root" /usr/bin/env -i "${given[@]}" /usr/bin/timeout -s KILL "$limit" \
  /usr/bin/bash -c 'cd "$0"; exec /usr/bin/bash "$@"' "/job/$start" "$script" "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A program that was started."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a script started, in order, and how it ended."""

    commands: tuple[Recorded, ...]
    status: int
    errors: str

    def python_words(self) -> list[list[str]]:
        """Words behind the file of every Python program that was started."""
        words = [
            list(one.argv[1:])
            for one in self.commands
            if one.argv[0] in TRAINERS and not {"--no-python", "--no_python"} & {*one.argv}
        ]
        places = [next((n for n, word in enumerate(one) if word.endswith(".py")), None) for one in words]
        return [one[at + 1 :] for one, at in zip(words, places, strict=True) if at is not None]

    def as_json(self) -> str:
        """Words and environment of the last program that is a trainer's."""
        last = next((one for one in reversed(self.commands) if one.argv[0] in TRAINERS), None)
        return json.dumps(None if last is None else {"argv": last.argv, "environment": dict(last.environment)})


def recorders(folder: Path) -> Path:
    """A folder of programs: tools of the machine, and recorders for everything else."""
    found = folder / "bin"
    if found.is_dir():
        return found
    found.mkdir(parents=True)
    for name in TOOLS:
        there = shutil.which(name, path="/usr/bin:/bin")
        if there is not None:
            shutil.copy(there, found / name)
    text = _RECORDER.replace("STARTERS", " ".join(STARTERS)).replace("TRAINERS", " ".join(TRAINERS))
    recorder = found / "recorder"
    recorder.write_text(text)
    recorder.chmod(0o755)
    for name in (*STARTERS, *TRAINERS, *OTHERS):
        if not (found / name).exists():
            (found / name).symlink_to("recorder")
    return found


def record(
    tree: Path,
    script: str,
    *,
    start: str = "",
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    programs: Path,
    sealed: bool = True,
) -> Recording:
    """Run a script of a tree of files with recorders.

    Args:
        tree: files beside the script; they are not changed where it is sealed.
        script: path in the tree.
        start: folder of the tree in which it is started.
        arguments: its `$1` and on.
        environment: of the script, beside PATH and HOME.
        programs: as `recorders` made it.
        sealed: run it in a root of its own, forgiving what it lacks there; otherwise as it is, which only scripts that
            were written here may be.
    """
    with tempfile.TemporaryDirectory(prefix="recording-") as kept:
        out = Path(kept, "record")
        out.mkdir()
        given = slurm(Path(tree, script).read_text(errors="replace")) | dict(environment or {})
        if sealed:
            words = _sealed(Path(kept), tree, script, start, arguments, given, programs)
            variables, folder = None, None
        else:
            words = ["/usr/bin/bash", str(tree / script), *arguments]
            path = f"{programs}:/usr/bin:/bin"
            variables, folder = {"PATH": path, "HOME": "/nowhere", "RECORD_HERE": str(out), **given}, tree / start
        try:
            done = subprocess.run(
                words,
                env=variables,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT_S + 10,
                check=False,
            )
            status, errors = done.returncode, done.stderr.decode(errors="replace")[-2000:]
        except subprocess.TimeoutExpired:
            status, errors = 137, "it ran past its time"
        commands = tuple(_recorded(path) for path in sorted(out.glob("*.argv")))
    return Recording(commands=commands, status=status, errors=errors)


def _sealed(
    kept: Path,
    tree: Path,
    script: str,
    start: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    programs: Path,
) -> list[str]:
    """The command that runs a script in a root of its own, which is mounted in `kept`."""
    root, out = kept / "root", kept / "record"
    root.mkdir()
    (out / "prelude").write_text(_PRELUDE)
    given = {"PATH": "/usr/bin", "HOME": "/root", "LANG": "C.UTF-8", "BASH_ENV": "/record/prelude", **environment}
    # The root itself is made with the machine's own programs; the script's environment is set last.
    names = [f"{name}={value}" for name, value in given.items()]
    count = len(names)
    head = f'given=("${{@:1:{count}}}"); shift {count}\n'
    command = ["unshare", "-Urnmpfi", "--kill-child", "bash", "-c", head + _SEALED, "sealed", *names]
    return [*command, *map(str, (root, programs, tree, out, start, f"/job/{script}", LIMIT_S)), *arguments]


def _recorded(path: Path) -> Recorded:
    words = path.read_bytes().decode(errors="replace").split("\0")[:-1]
    env = path.with_suffix(".env")
    lines = env.read_bytes().decode(errors="replace").split("\0") if env.exists() else []
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("BASH_FUNC"))
    return Recorded(argv=tuple(words), environment={name: value for name, _, value in pairs})


_SBATCH = re.compile(r"^#SBATCH\s+(?:--([a-z-]+)|-([NnG]))[ =]+\"?([^\s\"#]+)", re.MULTILINE)


def slurm(text: str) -> dict[str, str]:
    """Variables that Slurm would set for the `#SBATCH` lines of a script, for its first node."""
    said = {
        (long or {"N": "nodes", "n": "ntasks", "G": "gpus"}[short]): value
        for long, short, value in _SBATCH.findall(text)
    }
    if not said:
        return {}
    digits = {name: match[1] for name, value in said.items() if (match := re.search(r"(\d+)$", value))}
    nodes = digits.get("nodes", "1")
    found = {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    found |= {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "node0"}
    found |= {"SLURM_JOB_NAME": said.get("job-name", "job"), "SLURM_SUBMIT_DIR": "/job"}
    if "ntasks-per-node" in digits:
        found["SLURM_NTASKS_PER_NODE"] = digits["ntasks-per-node"]
        found["SLURM_NTASKS"] = str(int(nodes) * int(digits["ntasks-per-node"]))
    if "ntasks" in digits:
        found["SLURM_NTASKS"] = digits["ntasks"]
    for name in ("gres", "gpus-per-node"):
        if name in digits:
            found["SLURM_GPUS_ON_NODE"] = found["SLURM_GPUS_PER_NODE"] = digits[name]
    if "cpus-per-task" in digits:
        found["SLURM_CPUS_PER_TASK"] = digits["cpus-per-task"]
    return found
