#!/bin/bash
# args: 4 2
TP=$1; PP=$2
NODES=2
read -r -d '' OVERRIDES <<EOF || true
trainer.num_nodes=${NODES}
model.tensor_model_parallel_size=$TP
model.pipeline_model_parallel_size=$PP
EOF
python megatron_gpt_pretraining.py --config-name=llama $OVERRIDES "++model.name='a b'" \
  model.data.data_prefix=[0.5,a,0.5,b] exp_manager.explicit_log_dir="logs/tp${TP}_pp${PP}"
