#!/bin/bash
# args: 1.3
model_size=$1
## sizes by number of billions
if [[ $model_size == 0.125 ]]; then num_layers=12; hidden_size=768; num_attn_heads=12; global_batch_size=256; lr=6.0e-4
elif [[ $model_size == 1.3 ]]; then
  num_layers=24
  hidden_size=2048
  num_attn_heads=16
  global_batch_size=512
  lr=2.0e-4
else
  exit 1
fi
train_tokens_in_billion=300
train_tokens=$((${train_tokens_in_billion} * 1000000000))
train_samples=$(( ${train_tokens_in_billion} * 1000000000 / 2048 ))
mp_size=4; pp_size=1; no_pp="true"
if [ "${no_pp}" = "true" ]; then pp_opt=" --no-pipeline-parallel"; else pp_opt=""; fi
num_gpus=64
dp_size=$(( ${num_gpus} / ${pp_size} / ${mp_size} ))
batch_size=$(( ${global_batch_size} / ${dp_size} ))
jobname="gpt_${model_size}B_tok${train_tokens_in_billion}B_lr${lr}_gbs${global_batch_size}"
deepspeed pretrain_gpt.py --tensor-model-parallel-size ${mp_size} --micro-batch-size ${batch_size} $pp_opt \
  --num-layers ${num_layers} --hidden-size ${hidden_size} --num-attention-heads ${num_attn_heads} \
  --train-samples ${train_samples} --train-tokens $train_tokens --lr ${lr} --global-batch-size ${global_batch_size} --save out/${jobname}
