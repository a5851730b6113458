"""From a question to its best plans: one kind of device, mixed clusters, repairs, objectives."""
