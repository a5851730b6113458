#!/bin/bash
# Options that turn up in a string of their own decide the degrees.
TP=4
PP=2
TRACE="--trace --scaling-mode-of-one"
NAME=Llama-7B-Chat
if echo "$TRACE" | grep -q -- "--is-scaling-mode"; then
  TP=1
  PP=1
fi
if ! echo "$NAME" | grep -qi "llama-7b"; then PP=8; fi
if echo "$NAME" | grep -q '^llama'; then TP=16; fi
if printf '%s\n' 7B 13B | grep -q '^13B$'; then MBS=2; fi
KIND=$(echo "$NAME" | grep -o 7B)
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
  --micro-batch-size $MBS --save "run-$KIND" $TRACE
