"""`verify`: a plan compared with one device; the same losses, gradients and weights, or it is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.app.answer import Answer
from meshwright.app.requests.run import VerifyRequest
from meshwright.app.runs.inputs import RunInputs, run_inputs

if TYPE_CHECKING:
    from meshwright.runtime.parity import Parity

STEPS = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class Verified(Answer):
    """How far a plan's run is from one device."""

    inputs: RunInputs
    backend: str
    parity: Parity

    @property
    def ok(self) -> bool:
        """Whether every tensor is within the tolerance."""
        return self.parity.holds

    def data(self) -> dict[str, object]:
        """As data: `meshwright.verify/1`."""
        found = self.parity
        return {
            "schema": "meshwright.verify/1",
            "ok": self.ok,
            "model": self.inputs.name,
            "plan": self.inputs.title,
            "devices": self.inputs.plan_devices,
            "backend": self.backend,
            "dtype": self.inputs.dtype,
            "seq_len": self.inputs.seq_len,
            "steps": len(found.losses),
            "tolerance": found.tolerance,
            "loss": found.loss,
            "gradient": found.gradient,
            "weight": found.weight,
            "losses": list(found.losses),
            "losses_one_device": list(found.losses_alone),
            "tensors": [
                {"tensor": one.tensor, "gradient": one.gradient, "weight": one.weight} for one in found.compared
            ],
            "routed": found.routed,
            "routed_otherwise": found.routed_otherwise,
            "zero_gradient": [one.tensor for one in found.tensors if one.zero_gradient],
            "assumptions": list(self.inputs.assumptions),
        }

    def __repr__(self) -> str:
        return f"Verified({self.inputs.title}, {'ok' if self.ok else 'beyond tolerance'})"


def verify(request: VerifyRequest) -> Verified:
    """Run some steps under a plan and on one device, from the same state, on the same data, with the same dropout.

    Args:
        request: the model, the plan, where it runs, and what is tolerated; 1e-9 in fp64, 1e-5 in fp32, 2e-2 with
            bf16 products by default.

    Raises:
        InputError: model, plan and devices do not go together.
        UnsupportedError: what the zoo or the runtime does not have.
        LostError: a worker died or hung.
    """
    options, steps, tolerance = request.execution, request.steps, request.tolerance
    inputs = run_inputs(options)
    from meshwright.runtime.devices import claim_devices, jax_precision

    available = claim_devices(inputs.devices, stand_ins=request.execution.worker_devices != "cpu")
    from meshwright.runtime.parity import parity_of, run_alone, run_parallel

    with jax_precision(inputs.dtype):
        training = inputs.training(options)
        state = training.initial()
        there = run_parallel(training, available, steps, state)
        parity = parity_of(there, run_alone(training, steps, state), inputs.dtype, tolerance)
    return Verified(inputs=inputs, backend=options.backend, parity=parity)
