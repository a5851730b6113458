torchrun pretrain_gpt.py --tensor-model-parallel-size ${TP:-1} --pipeline ${PP:-1}
