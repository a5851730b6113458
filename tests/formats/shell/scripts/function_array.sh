#!/bin/bash
common_args() {
  cat <<EOF
--num-layers 32
--hidden-size 4096 --bf16
EOF
}
moe_args() { echo "--num-experts $1 --moe-router-topk ${2:-2}"; }
mapfile -t LINES <<< "--x 1
--y 2"
ARGS=( $(common_args) $(moe_args 8) "${LINES[@]}" )
ARGS=("${ARGS[@]}" --micro-batch-size 1)
python pretrain_gpt.py "${ARGS[@]:2}"
