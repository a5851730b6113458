#!/bin/bash
# args: large
small_layers=12; large_layers=48
name=$1_layers
export TP_large=8
tp=TP_$1
printf -v padded "%03d" 7
eval "dims_$1=8192"
declare "heads_$1=64"
h=heads_$1 d=dims_$1
python pretrain_gpt.py --num-layers ${!name} --tensor-model-parallel-size ${!tp} --pad $padded --hidden-size ${!d} --heads ${!h}
