"""JAX: the laws on arrays, pure, inside `jit`, `scan`, `grad` and `vmap`. Needs `pip install jax`.

>>> law = cv.PI(target=18.0)
>>> control = init(law)  # beside the parameters in the carry of the loop
>>> control = update(law, control, kl)  # inside the loss, before the weight is used
>>> loss = reconstruction + control.beta * kl
"""

from controlvae.integrations._requirements import needs
from controlvae.laws import Law, State
from controlvae.laws.backend import Backend, Record, Value

with needs("jax"):
    import jax
    import jax.numpy as jnp
    from jax import Array


class Arrays:
    """What a law may do with JAX arrays."""

    sigmoid = staticmethod(jax.nn.sigmoid)
    floor = staticmethod(jnp.floor)
    exp = staticmethod(jnp.exp)
    where = staticmethod(jnp.where)

    @staticmethod
    def clip(x: Array, low: float, high: float) -> Array:
        return jnp.clip(x, low, high)

    @staticmethod
    def choose(condition: Array, yes: Record, no: Record) -> Record:
        return jax.tree.map(lambda y, n: jnp.where(condition, y, n), yes, no)


ARRAYS: Backend = Arrays()


def init(law: Law, models: int | None = None) -> State:
    """The state before the first update: a pytree of arrays, 0-dim or `(models,)`.

    In float64 where `jax_enable_x64` is on. Otherwise in float32, which counts exactly to 16.7 million steps and stops
    integrating errors below about β · 6e-8 / ki.
    """
    shape = () if models is None else (models,)
    return State(*(jnp.full(shape, value, dtype=float) for value in law.initial()))


def update(law: Law, state: State, measured: Value) -> State:
    """The state after one more measurement, in nats per example; `.beta` of it is the weight to use.

    No gradient passes through. Under `pmap` or `shard_map` give it `jax.lax.pmean(kl, axis)`, and every device ends
    with the same weight.
    """
    value = jax.lax.stop_gradient(jnp.asarray(measured, state.beta.dtype))
    if value.shape != state.beta.shape:
        raise ValueError(
            f"measured must have shape {state.beta.shape}, got {value.shape}: sum KL over the latents and average it "
            f"over the batch; for several models at once, init(law, models=N)"
        )
    return law.update(state, value, ARRAYS)
