"""Calculon's model of transformer training and inference, whole, in columns: many executions priced at once.

Reads the application, system and execution files of Calculon unchanged and gives its 96 statistics under their names.

Source: M. Isaev, N. McDonald, L. Dennison, R. Vuduc, "Calculon: a Methodology and Tool for High-Level Co-Design of
Systems and Large Language Models", SC'23, doi 10.1145/3581784.3607102.
"""
