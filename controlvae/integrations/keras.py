"""Integration with Keras 3, on any backend: a layer that adds the weighted KL to the losses.

Needs `pip install keras`.
"""

from typing import Any

from controlvae import laws
from controlvae.integrations._checks import require_kl_law, require_packages
from controlvae.laws import Law
from controlvae.laws.backend import Backend, Record
from controlvae.laws.states import LEGACY_FIELDS

with require_packages("keras jax  (or another backend, with KERAS_BACKEND set to it)"):
    import keras
    from keras import ops


class KerasTensors:
    """Backend for the tensors of Keras."""

    sigmoid = staticmethod(ops.sigmoid)
    floor = staticmethod(ops.floor)
    exp = staticmethod(ops.exp)
    log = staticmethod(ops.log)
    where = staticmethod(ops.where)
    clip = staticmethod(ops.clip)

    @staticmethod
    def choose(condition: Any, yes: Record, no: Record) -> Record:
        return type(no)(*(ops.where(condition, y, n) for y, n in zip(yes, no, strict=True)))


KERAS_TENSORS: Backend = KerasTensors()


@keras.saving.register_keras_serializable("controlvae", name="KLControl")
class KLControlLayer(keras.layers.Layer):
    """Layer that adds β times the mean KL to the model's losses and controls β.

    >>> self.control = KLControlLayer(cv.PI(target=18.0))  # in the model's __init__
    >>> self.control(kl, training=training)  # in its call; kl has shape (batch,), in nats

    The input is the KL of each example, summed over latents. The layer returns it unchanged. The
    law updates with every training batch, and not in evaluation. Pass `training` explicitly,
    because some backends do not. The state is a float32 variable and is saved with the weights; the
    law is saved with the model. The reconstruction must have the same units: summed over the data's
    dimensions, averaged over the batch.

    Args:
        law: Control law.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    def __init__(self, law: Law, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.law = require_kl_law(law)
        start = law.initial_state()
        self._state_type = type(start)
        self.state = self.add_weight(
            shape=(len(start),),
            initializer=lambda shape, dtype: ops.convert_to_tensor(list(start), dtype),
            dtype="float32",
            trainable=False,
            autocast=False,
            name="state",
        )

    def call(self, kl: Any, training: bool = False) -> Any:
        mean = ops.mean(ops.cast(kl, "float32"))
        state = self._state_type(*ops.unstack(ops.convert_to_tensor(self.state)))
        if training:
            state = self.law.update(state, ops.stop_gradient(mean), KERAS_TENSORS)
            self.state.assign(ops.stack(state))
        self.add_loss(state.beta * mean)
        return kl

    def stats(self) -> dict[str, float]:
        """Return KL (after the law's moving average), β and target after the last training batch.

        An open-loop law has no target. Within `fit` on the JAX backend, use `KLControlLog`.
        """
        state = self._state_type(*ops.convert_to_numpy(self.state).tolist())
        target = {} if self.law.open_loop else {"target": state.target}
        return {**target, "kl": state.measured, "beta": state.beta}

    def load_own_variables(self, store: Any) -> None:
        values = store["0"]
        if len(values) == len(LEGACY_FIELDS) != len(self._state_type._fields):
            # Up to version 0.1 every law saved the same thirteen fields.
            saved = dict(zip(LEGACY_FIELDS.values(), values, strict=True))
            self.state.assign([saved[name] for name in self._state_type._fields])
            return
        super().load_own_variables(store)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "law": _to_config(self.law)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "KLControlLayer":
        return cls(**{**config, "law": _from_config(config["law"])})


KLControl = KLControlLayer  # name of version 0.1


class KLControlLog(keras.callbacks.Callback):
    """Callback that adds target, KL and β at the end of an epoch to its logs.

    They then appear in `History` or in a CSV file.

    >>> model.fit(data, callbacks=[KLControlLog(model.control)])

    Args:
        control: Layer to read.
    """

    def __init__(self, control: KLControlLayer) -> None:
        super().__init__()
        self.control = control

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs.update(self.read_stats())

    def read_stats(self) -> dict[str, float]:
        """Return the layer's stats, also within `fit`."""
        if hasattr(self.model, "jax_state_sync"):
            # Within `fit` the JAX backend keeps the values of variables in its own state.
            self.model.jax_state_sync()
        return self.control.stats()


def _to_config(value: Any) -> Any:
    """Convert laws to dictionaries for JSON and leave other values unchanged."""
    if not isinstance(value, Law):
        return value
    settings = {name: _to_config(each) for name, each in vars(value).items()}
    return {"type": type(value).__name__, **settings}


def _from_config(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    settings = {name: _from_config(each) for name, each in value.items() if name != "type"}
    return getattr(laws, value["type"])(**settings)
