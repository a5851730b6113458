"""A model of the zoo trained under a plan of any form: its step, its state, and the same step on one device."""
