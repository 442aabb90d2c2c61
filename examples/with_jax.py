"""Keep the KL of a VAE in JAX at 8 nats; the whole training is one `scan`.

`pip install jax`, then `python examples/with_jax.py --out kl.png`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common import Trace, binary_vectors, parse_arguments

import controlvae as cv
from controlvae.integrations.jax import init_state, update_state

LAW = cv.Auto(target=8.0, reach_in=500)
RATE = 0.01


def compute_terms(
    weights: dict[str, Any], x: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return reconstruction and KL in nats per example."""
    mean, log_variance = jnp.split(x @ weights["encoder"] + weights["encoder_bias"], 2, axis=1)
    z = mean + jnp.exp(log_variance / 2) * jax.random.normal(key, mean.shape)
    logits = z @ weights["decoder"] + weights["decoder_bias"]
    recon = (jnp.logaddexp(0, logits) - x * logits).sum(axis=1).mean()
    return recon, (mean**2 + jnp.exp(log_variance) - 1 - log_variance).sum(axis=1).mean() / 2


def train(data: jax.Array, steps: int) -> tuple[jax.Array, jax.Array]:
    """Return KL and weight of every step."""
    first, second, key = jax.random.split(jax.random.key(0), 3)
    weights = {
        "encoder": jax.random.normal(first, (64, 16)) / 8,
        "encoder_bias": jnp.zeros(16),
        "decoder": jax.random.normal(second, (8, 64)) / 8,
        "decoder_bias": jnp.zeros(64),
    }
    zeros = jax.tree.map(jnp.zeros_like, weights)

    def step(carry: Any, number: jax.Array) -> Any:
        weights, (slope, square), control = carry
        chosen, noise = jax.random.split(jax.random.fold_in(key, number))
        x = data[jax.random.randint(chosen, (128,), 0, len(data))]

        def loss(weights: Any) -> Any:
            recon, kl = compute_terms(weights, x, noise)
            now = update_state(LAW, control, kl)
            return recon + now.beta * kl, (now, kl)

        gradients, (control, kl) = jax.grad(loss, has_aux=True)(weights)
        slope = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, slope, gradients)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, square, gradients)
        rate = RATE * jnp.sqrt(1 - 0.999 ** (number + 1.0)) / (1 - 0.9 ** (number + 1.0))  # Adam
        weights = jax.tree.map(
            lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, slope, square
        )
        return (weights, (slope, square), control), (kl, control.beta)

    _, trace = jax.lax.scan(step, (weights, (zeros, zeros), init_state(LAW)), jnp.arange(steps))
    return trace


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    kl, beta = jax.jit(train, static_argnums=1)(jnp.asarray(binary_vectors()), options.steps)
    trace = Trace(8.0, kl.tolist(), beta.tolist())
    trace.draw(options.out)
    return trace


if __name__ == "__main__":
    main()
