"""Schedules of the literature, a file each, beside what families of them share."""
