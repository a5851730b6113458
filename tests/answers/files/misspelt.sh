torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 --tensor-model-paralel-size 2 --num-layers many
