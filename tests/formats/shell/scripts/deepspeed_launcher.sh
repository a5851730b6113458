#!/bin/bash
USER_ARGS="--model_name_or_path base --per_device_train_batch_size 4 --gradient_accumulation_steps 8"
deepspeed --num_nodes 2 --num_gpus 8 --hostfile hosts finetune.py $USER_ARGS --deepspeed ds_zero3.json --bf16 True --output_dir "./out put"
