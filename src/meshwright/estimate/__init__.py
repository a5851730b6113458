"""What a plan costs: seconds and bytes of layers, stages and the whole step."""
