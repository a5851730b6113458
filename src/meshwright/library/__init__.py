"""Devices, models, software and calibrations that come with the package, each number with its source."""
