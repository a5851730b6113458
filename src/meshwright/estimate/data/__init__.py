"""What data ranks cost a step: who sums gradients with whom, and how long it takes."""
