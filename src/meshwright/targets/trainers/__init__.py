"""Trainers whose configurations are read as plans, and not written: one file each."""
