#!/bin/bash
TP=2
(TP=8; export INNER=1; cd /nowhere || true)
{ PP=4; }
VALUE=$(TP=16; echo "$TP")
echo hi | TP=32
f() ( TP=64; echo "f$TP" )
G=$(f)
python pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --value $VALUE --g $G --inner "${INNER:-none}"
