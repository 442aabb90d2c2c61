"""Keras 3, on any backend: a layer that adds the weighted KL to the model's losses. Needs `pip install keras`."""

from typing import Any

from controlvae import laws as control
from controlvae.integrations._checks import on_the_kl
from controlvae.integrations._requirements import needs
from controlvae.laws import Law, State
from controlvae.laws.backend import Backend, Record

with needs("keras jax  (or another backend, with KERAS_BACKEND set to it)"):
    import keras
    from keras import ops


class Tensors:
    """What a law may do with tensors of Keras's backend."""

    sigmoid = staticmethod(ops.sigmoid)
    floor = staticmethod(ops.floor)
    exp = staticmethod(ops.exp)
    where = staticmethod(ops.where)
    clip = staticmethod(ops.clip)

    @staticmethod
    def choose(condition: Any, yes: Record, no: Record) -> Record:
        return type(no)(*(ops.where(condition, y, n) for y, n in zip(yes, no, strict=True)))


TENSORS: Backend = Tensors()


@keras.saving.register_keras_serializable("controlvae")
class KLControl(keras.layers.Layer):
    """Holds a KL at its target: takes the KL of each example, adds β times their mean to the model's losses.

    >>> self.control = KLControl(cv.PI(target=18.0))  # in the model's __init__
    >>> self.control(kl, training=training)  # in its call: shape (batch,), summed over latents, in nats

    Returns its input. The law moves with every training batch, and not in evaluation; pass `training` on, because some
    backends do not. The state is a float32 variable, saved with the weights; the law is saved with the model. The
    reconstruction belongs in the same units: summed over the data's dimensions, averaged over the batch.
    """

    def __init__(self, law: Law, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.law = on_the_kl(law)
        start = list(law.initial())
        self.state = self.add_weight(
            shape=(len(start),),
            initializer=lambda shape, dtype: ops.convert_to_tensor(start, dtype),
            dtype="float32",
            trainable=False,
            autocast=False,
            name="state",
        )

    def call(self, kl: Any, training: bool = False) -> Any:
        mean = ops.mean(ops.cast(kl, "float32"))
        state = State(*ops.unstack(ops.convert_to_tensor(self.state)))
        if training:
            state = self.law.update(state, ops.stop_gradient(mean), TENSORS)
            self.state.assign(ops.stack(state))
        self.add_loss(state.beta * mean)
        return kl

    def stats(self) -> dict[str, float]:
        """KL (after the law's moving average), β and the target, where there is one, after the last training batch.

        On the JAX backend, within `fit`, see `KLControlLog`.
        """
        state = State(*ops.convert_to_numpy(self.state).tolist())
        target = {} if self.law.open_loop else {"target": state.target}
        return {**target, "kl": state.measured, "beta": state.beta}

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "law": _to_config(self.law)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "KLControl":
        return cls(**{**config, "law": _from_config(config["law"])})


class KLControlLog(keras.callbacks.Callback):
    """Puts target, KL and β as they are at the end of an epoch into its logs, and so into `History` or a CSV file."""

    def __init__(self, control: KLControl) -> None:
        super().__init__()
        self.control = control

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs.update(self.now())

    def now(self) -> dict[str, float]:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # within `fit` the JAX backend keeps variables to itself
        return self.control.stats()


def _to_config(value: Any) -> Any:
    """A law as a dictionary that JSON can hold; anything else as it is."""
    if not isinstance(value, Law):
        return value
    return {
        "type": type(value).__name__,
        **{name: _to_config(each) for name, each in vars(value).items()},
    }


def _from_config(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    settings = {name: _from_config(each) for name, each in value.items() if name != "type"}
    return getattr(control, value["type"])(**settings)
