#!/bin/bash
# asks: "from its arguments" --arg
SIZE=""
while [[ $# -gt 0 ]]; do
  case $1 in
    --size) SIZE="$2"; shift 2 ;;
    *) exit 1 ;;
  esac
done
if [[ -z "$SIZE" ]]; then
  echo "a size is missing"
  exit 1
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size $SIZE --global-batch-size 64 --num-layers 4
