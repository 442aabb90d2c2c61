"""Keep the KL of a Keras 3 model at 8 nats.

The environment variable `KERAS_BACKEND` selects the backend; the default is torch.

`pip install keras`, then `python examples/with_keras.py --out kl.png`.
"""

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from common import Trace, binary_vectors, parse_arguments
from keras import ops

import controlvae as cv
from controlvae.integrations.keras import KLControlLayer, KLControlLog


class VAE(keras.Model):
    def __init__(self, law: cv.laws.Law) -> None:
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(16), keras.layers.Dense(64)
        self.noise = keras.random.SeedGenerator(0)
        self.control = KLControlLayer(law)

    def call(self, x: Any, training: bool = False) -> Any:
        mean, log_variance = ops.split(self.encoder(x), 2, axis=1)
        kl = ops.sum(mean**2 + ops.exp(log_variance) - 1 - log_variance, axis=1) / 2
        self.control(kl, training=training)  # adds β · KL to the loss
        return self.decoder(
            mean + ops.exp(log_variance / 2) * keras.random.normal(ops.shape(mean), seed=self.noise)
        )


def summed_cross_entropy(x: Any, logits: Any) -> Any:
    """Return nats per example, like the KL. The losses of Keras average over pixels."""
    return ops.sum(ops.binary_crossentropy(x, logits, from_logits=True), axis=-1)


class Recorder(KLControlLog):
    """Callback that records every batch for the figure."""

    def __init__(self, control: KLControlLayer, trace: Trace) -> None:
        super().__init__(control)
        self.trace = trace

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        stats = self.read_stats()
        self.trace.kl.append(stats["kl"])
        self.trace.beta.append(stats["beta"])


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    keras.utils.set_random_seed(0)
    data, trace = binary_vectors(), Trace(8.0, [], [])
    model = VAE(cv.Auto(target=8.0, reach_in=500))
    model.compile(keras.optimizers.Adam(0.01), loss=summed_cross_entropy)
    epochs = max(1, options.steps * 128 // len(data))
    model.fit(
        data,
        data,
        batch_size=128,
        epochs=epochs,
        callbacks=[Recorder(model.control, trace)],
        verbose=0,
    )
    trace.draw(options.out)
    return trace


if __name__ == "__main__":
    main()
