#!/bin/bash
# args: H100-80GB 175b debug
case "$1" in
  A100*|a100*) FP=--bf16 ;;
  [Hh]100?80*) FP="--fp8-format hybrid --bf16" ;;
  *) FP=--fp16 ;;
esac
shopt -s extglob
case $2 in
  x*) KIND=none ;;
  1*) LAYERS=96 ;;
  *) LAYERS=1 ;;
esac
case "$3" in debug) ITERS=10 ;& profile) PROF=--profile ;; *) ITERS=1000 ;; esac
[[ $1 == *80GB ]] && ROOM=large || ROOM=small
[[ "$2" =~ ^([0-9]+)b$ ]] && OK=yes
torchrun --nproc_per_node 8 pretrain_gpt.py $FP --num-layers $LAYERS --train-iters $ITERS $PROF --room $ROOM --ok $OK
