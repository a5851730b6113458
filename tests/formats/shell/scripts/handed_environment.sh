#!/bin/bash
# Variables and functions that a command hands to what it starts.
env TP=4 bash _worker_of_env.sh
env -u OTHER TP=2 PP=2 sh -c 'torchrun pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline $PP'
launch() { torchrun pretrain_gpt.py --micro-batch-size "$1"; }
export -f launch
bash -c 'launch 8'
bash -s -- a b <<'END'
torchrun pretrain_gpt.py "$1" "$#"
END
echo "--seq-length 1024" | xargs torchrun pretrain_gpt.py
