"""What a model of the zoo is to a training step, whatever its family."""

from __future__ import annotations

from typing import Any, Protocol

import jax


class Model(Protocol):
    """Weights and a loss."""

    @property
    def name(self) -> str:
        """Name as users write it."""
        ...

    @property
    def num_layers(self) -> int:
        """Layers that stages may be cut between."""
        ...

    def init(self, key: jax.Array) -> Any:
        """Weights before the first step.

        Args:
            key: the key of the random numbers.
        """
        ...

    def loss(self, weights: Any, batch: Any, key: jax.Array) -> jax.Array:
        """Mean over the samples of a batch.

        Args:
            weights: the weights of `init`.
            batch: the batch of `batch`.
            key: the key of the step's random numbers.
        """
        ...

    def batch(self, step: int, samples: int, seed: int = 0) -> dict[str, Any]:
        """The samples of a step, on the host; the same for the same numbers.

        Args:
            step: counted from 0.
            samples: the number of samples in the batch.
            seed: the seed of the data.
        """
        ...
