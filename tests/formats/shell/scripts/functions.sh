#!/bin/bash
set -euo pipefail
join_by() { local IFS="$1"; shift; echo "$*"; }
batch_for() {
  local gpus=$1 per=$2
  echo $((gpus * per))
}
function add() { ARGS+=("$@"); }
launch() {
  local script=$1
  shift
  torchrun --nproc_per_node "$GPUS" "$script" "$@"
}
GPUS=8
ARGS=()
add --num-layers 24
add --hidden-size 2048 --num-attention-heads 16
add --global-batch-size "$(batch_for $GPUS 4)"
for flag in bf16 swiglu disable-bias-linear; do
  add "--$flag"
done
for ((i = 0; i < 2; i++)); do add --layer-option $i; done
launch pretrain_gpt.py "${ARGS[@]}" --micro-batch-size 1 --list "$(join_by , a b c)"
