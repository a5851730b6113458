#!/bin/bash
# args: --tp=4 -p 2 --fast data
OPTIONS=$(getopt -o p:v --long tp:,fast -- "$@")
eval set -- "$OPTIONS"
while true; do
  case "$1" in
    --tp) TP=$2; shift 2 ;;
    -p) PP=$2; shift 2 ;;
    --fast) FAST=--bf16; shift ;;
    --) shift; break ;;
  esac
done
torchrun pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline $PP $FAST "$@"
