"""Stages priced by `estimate` from data sheets."""
