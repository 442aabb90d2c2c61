"""Integration with JAX: pure laws on arrays, inside `jit`, `scan`, `grad` and `vmap`.

Needs `pip install jax`.

>>> law = cv.PI(target=18.0)
>>> control = init_state(law)  # next to the parameters in the carry of the loop
>>> control = update_state(law, control, kl)  # inside the loss, before the weight is used
>>> loss = reconstruction + control.beta * kl
"""

from typing import Any

from controlvae.integrations._checks import require_packages
from controlvae.laws import Law
from controlvae.laws.backend import Backend, Record, Value

with require_packages("jax"):
    import jax
    import jax.numpy as jnp
    from jax import Array


class Arrays:
    """Backend for JAX arrays."""

    sigmoid = staticmethod(jax.nn.sigmoid)
    floor = staticmethod(jnp.floor)
    exp = staticmethod(jnp.exp)
    log = staticmethod(jnp.log)
    where = staticmethod(jnp.where)

    @staticmethod
    def clip(x: Array, low: float, high: float) -> Array:
        return jnp.clip(x, low, high)

    @staticmethod
    def choose(condition: Array, yes: Record, no: Record) -> Record:
        return jax.tree.map(lambda y, n: jnp.where(condition, y, n), yes, no)


ARRAYS: Backend = Arrays()


def init_state(law: Law, models: int | None = None) -> Any:
    """Return the state before the first update: a pytree of arrays, 0-dim or `(models,)`.

    The arrays are float64 if `jax_enable_x64` is on. Otherwise they are float32, which counts
    exactly to 16.7 million steps and cannot integrate errors below about β · 6e-8 / ki.
    """
    shape = () if models is None else (models,)
    state = law.initial_state()
    return type(state)(*(jnp.full(shape, value, dtype=float) for value in state))


def update_state(law: Law, state: Any, measured: Value) -> Any:
    """Return the state after one more measurement; its `beta` is the weight to use.

    No gradient flows through. Under `pmap` or `shard_map`, pass `jax.lax.pmean(kl, axis)`, so that
    every device has the same weight.

    Args:
        law: Control law.
        state: State returned by `init_state` or by the previous update.
        measured: KL in nats per example, averaged over the batch.
    """
    value = jax.lax.stop_gradient(jnp.asarray(measured, state.beta.dtype))
    if value.shape != state.beta.shape:
        raise ValueError(
            f"measured must have shape {state.beta.shape}, got {value.shape}: sum the KL over the "
            "latents and average it over the batch; for several models at once, call "
            "init_state(law, models=N)"
        )
    return law.update(state, value, ARRAYS)


init, update = init_state, update_state  # names of version 0.1
