#!/bin/bash
# Data first, then training: two programs, each with its words.
python tools/preprocess_data.py --input data.json --workers $((2 * 4)) && \
torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 4 --data-path out_text_document; echo done
