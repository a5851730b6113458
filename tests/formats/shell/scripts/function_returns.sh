#!/bin/bash
is_big() { [ "$1" -ge 64 ]; }
has_gpu() { return 0; }
pick() { if is_big $1; then REPLY_=8; return; fi; REPLY_=2; }
pick 80; TP=$REPLY_
pick 24; PP=$REPLY_
is_big 3 || SMALL=1
if has_gpu && ! is_big 10; then OK=1; fi
! is_big 99; CODE=$?
python pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --small $SMALL --ok $OK --code $CODE
