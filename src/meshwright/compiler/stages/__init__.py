"""The inter-operator pass: which layers form a stage, on how many devices, seen as which logical mesh.

`layers` finds the repeated layers of a loss, `hosts` the submeshes of equal hosts and the price of their links,
`islands` those of hosts of several kinds; `tables` price a layer between all placements of its borders, `ranges` join
them to every range of layers, `partition` chooses stages by dynamic programming, `search` tries numbers of
micro-batches and recomputation and lets the event simulator run the best, `plan` is what it found, as data, `shortage`
says what nothing fits into, `apply` writes a plan into the programs of its stages.

Source: Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning" (OSDI
2022), section 5.
"""
