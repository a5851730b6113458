"""Ways to run a training step on many devices: what users hand to `parallelize`, a file for each family.

`method` is what they take alike; `data` splits samples, `shard` operators, `pipeshard` layers, `auto` chooses, and
`decided` follows another step or a saved plan.
"""
