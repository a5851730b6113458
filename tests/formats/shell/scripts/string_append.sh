#!/bin/bash
# args: moe
OPTIONS="--num-layers 24"
OPTIONS+=" --hidden-size 2048"
if [ "$1" == "moe" ]; then
  OPTIONS="${OPTIONS} --num-experts 8 \
    --moe-router-topk 2"
  EP=4
  [ $EP -gt 1 ] && OPTIONS+=" --expert-model-parallel-size ${EP}"
fi
OPTIONS="$OPTIONS
   --micro-batch-size 1"
CMD="torchrun --nproc_per_node 8 pretrain_gpt.py $OPTIONS"
echo "$CMD" && $CMD
