"""A Flax NNX program with one line added: `python examples/nnx_classifier.py` trains on eight virtual devices."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np
import optax
from flax import nnx

import meshwright as mw


class CNN(nnx.Module):
    """Two convolutions and two linear layers."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 8, kernel_size=(3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(8, 16, kernel_size=(3, 3), rngs=rngs)
        self.linear1 = nnx.Linear(64, 32, rngs=rngs)
        self.linear2 = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.avg_pool(nnx.relu(self.conv1(x)), window_shape=(2, 2), strides=(2, 2))
        x = nnx.avg_pool(nnx.relu(self.conv2(x)), window_shape=(2, 2), strides=(2, 2))
        return self.linear2(nnx.relu(self.linear1(x.reshape(x.shape[0], -1))))


def loss_fn(model, batch):
    logits = model(batch["image"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits=logits, labels=batch["label"]).mean()
    return loss, logits


CORES = mw.Hosts(hosts=1, devices_per_host=8, flop_per_s=1e9, launch_s=2e-5,
                 inside_bytes_per_s=1e9, between_bytes_per_s=1e9)  # fmt: skip
"""Eight virtual devices of a CPU, roughly; `hosts="8xH100"` plans for eight H100."""


@mw.parallelize(method=mw.Auto(hosts=CORES))
@nnx.jit
def train_step(model, optimizer, metrics, batch):
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])
    optimizer.update(model, grads)


def digits(seed, count=64):
    """Ten patterns of 8 x 8 pixels, with noise."""
    drawn = np.random.default_rng(seed)
    patterns = np.random.default_rng(0).normal(size=(10, 8, 8, 1))
    label = drawn.integers(0, 10, count)
    return {"image": (patterns[label] + drawn.normal(size=(count, 8, 8, 1))).astype("float32"), "label": label}


model = CNN(rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adamw(5e-3), wrt=nnx.Param)
metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
for epoch in range(3):
    for step in range(5):
        train_step(model, optimizer, metrics, digits(seed=1 + step))
    found = metrics.compute()
    print(f"epoch {epoch}: loss {found['loss']:.3f}, accuracy {found['accuracy']:.2f}")
    metrics.reset()
print(train_step.compiled().plan)
print(mw.timeline(train_step, model, optimizer, metrics, digits(seed=6)))
