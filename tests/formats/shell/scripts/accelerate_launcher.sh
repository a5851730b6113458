#!/bin/bash
# env: NUM_PROCESSES=16
ACC=(--config_file fsdp.yaml --num_processes "$NUM_PROCESSES" --num_machines "$((NUM_PROCESSES / 8))")
accelerate launch "${ACC[@]}" --main_process_port $((29500 + 1)) train_sft.py \
    --per_device_train_batch_size 2 --learning_rate 2e-5 --gradient_checkpointing
