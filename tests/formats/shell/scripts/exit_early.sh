#!/bin/bash
# args: run
usage() { echo "usage: $0 run"; exit 1; }
[ $# -ge 1 ] || usage
if [ "$1" = help ]; then
  usage
  torchrun pretrain_gpt.py --micro-batch-size 99
elif [ "$1" = run ]; then
  torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 2
  exit 0
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 77
