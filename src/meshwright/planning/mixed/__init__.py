"""Plans of one job on several kinds of device, by one search over any source of stage costs."""
