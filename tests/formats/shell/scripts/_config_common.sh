NODES=16
COMMON="--bf16 --micro-batch-size 2 --global-batch-size $((NODES * 8 * 2))"
