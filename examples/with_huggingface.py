"""Keep the KL of a model at 8 nats with Hugging Face's Trainer.

`pip install transformers accelerate`, then `python examples/with_huggingface.py --out kl.png`.
"""

import tempfile
from collections.abc import Sequence

import torch
from common import SmallVAE, Trace, binary_vectors, parse_arguments
from torch import Tensor, nn
from transformers import PrinterCallback, TrainingArguments

import controlvae as cv
from controlvae.integrations.huggingface import ControlledTrainer


class Model(nn.Module):
    """Model that returns the reconstruction as `loss`, and the KL as `kl`."""

    def __init__(self) -> None:
        super().__init__()
        self.vae = SmallVAE()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        recon, kl = self.vae(x)
        return {"loss": recon, "kl": kl}


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    data = [{"x": row} for row in torch.from_numpy(binary_vectors())]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=128,
            learning_rate=0.01,
            logging_steps=1,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        torch.manual_seed(0)
        trainer = ControlledTrainer(
            Model(), settings, train_dataset=data, law=cv.Auto(target=8.0, reach_in=500)
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    lines = [line for line in trainer.state.log_history if "kl" in line]
    trace = Trace(8.0, [line["kl"] for line in lines], [line["beta"] for line in lines])
    trace.draw(options.out)
    return trace


if __name__ == "__main__":
    main()
