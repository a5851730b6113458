"""The intra-operator pass: how each operator of a stage is split over a logical mesh of devices.

`rules` say which dimensions of an equation's operands and results belong together, `strategies` are the ways to split
it, `cost` prices what moves between devices, `graph` merges followers into their operands and lays down what is to be
decided, `solve` decides it exactly, `apply` writes the decision into the program, `explain` says why, `collectives`
counts what the compiler made of it.

Source: Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning" (OSDI
2022), section 4.
"""
