"""The inter-operator pass: which layers form a stage, on how many devices, seen as which logical mesh.

`layers` finds the repeated layers of a loss, `hosts` the submeshes of a cluster and the price of their links, `tables`
price one layer between all placements of its borders, `ranges` join them to every range of layers, `partition` chooses
stages by dynamic programming, `timing` lets the event simulator run them, `search` tries numbers of micro-batches and
recomputation, `plan` is what it found, as data.

Source: Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning" (OSDI
2022), section 5.
"""
