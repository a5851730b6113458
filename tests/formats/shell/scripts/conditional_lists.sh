#!/bin/bash
# args: 16
GPUS=$1
[ "$GPUS" -ge 16 ] && TP=8 || TP=2
[ "$GPUS" -lt 16 ] && PP=2
[[ $GPUS -eq 16 && ( $TP == 8 || $TP == 4 ) ]] && SP=--sequence-parallel
[ $TP -gt 1 ] && [ -n "$SP" ] && OVERLAP="--tp-comm-overlap"
if [ "$TP" = 8 -o "$TP" = 4 ]; then BIG=1; fi
if ! [ "$BIG" ]; then SMALL=1; elif [ 1 -eq 2 ]; then NEVER=1; else LAST=1; fi
true && YES=1; false || NO=1; ! false && NOT=1
[ "abc" \< "abd" ] && LESS=1
torchrun --nproc_per_node 8 --nnodes $((GPUS/8)) pretrain_gpt.py --tensor-model-parallel-size $TP \
  --pipeline-model-parallel-size ${PP:-1} $SP $OVERLAP --big ${BIG:-0} --small ${SMALL:-0} --last $LAST $YES$NO$NOT$LESS --micro-batch-size 1
