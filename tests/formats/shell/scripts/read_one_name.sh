# A name alone takes the whole line, or all of a heredoc.
read -r degrees <<< "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4"
read -r -d '' options <<EOF || true
--num-layers 32 \
--hidden-size 4096
--micro-batch-size 1
EOF
torchrun --nproc_per_node 8 pretrain_gpt.py $degrees $options
