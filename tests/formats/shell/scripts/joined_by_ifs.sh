#!/bin/bash
# args: one two three
# The kind of each layer is written as one list, and the stages as another.
kinds=()
for ((layer = 0; layer < 4; layer++)); do
  if ((layer < 1)); then kinds+=(0); else kinds+=(1); fi
done
printf -v FREQUENCY "[%s]" "$(IFS=', '; echo "${kinds[*]}")"
stages=(E t t L)
plain="${stages[*]}"
IFS='|'
torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 4 --micro-batch-size 1 --moe-layer-freq "$FREQUENCY" \
  --pipeline-model-parallel-layout "${stages[*]}" --note "$plain" --each "${stages[@]}" --few "${stages[*]:1:2}" --tail "${*:2}"
