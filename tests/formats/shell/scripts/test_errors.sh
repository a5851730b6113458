#!/bin/bash
# A test with an empty operand is an error to bash, and an error is not true.
# args: 8B
SIZE=$1
AC=$2
if [ $AC = full ]; then
  more="--recompute-granularity full"
elif [ $AC = sel ]; then
  more="--recompute-activations"
fi
if ! [ $AC = none ]; then
  seen="--log-interval 7"
fi
run="torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 $more $seen --micro-batch-size 1"
eval $run
