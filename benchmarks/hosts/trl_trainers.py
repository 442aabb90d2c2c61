"""Hold the KL and the entropy of a policy in TRL: GRPO and RLOO on a random tiny language model.

    pip install trl
    python benchmarks/hosts/trl_trainers.py

The model has one layer and 18 words. The reward is the mean number of the words of a completion, so
without control the policy ends with one word. Rivals are a fixed `beta` of 0.04 for the KL and
TRL's `use_adaptive_entropy` with its default step for the entropy. Takes about ten minutes of one
core. Runs are judged by means over 50 steps: the KL of a batch of 32 completions varies so much
that means over ten steps have a standard deviation of 9 % without any change of the policy.
"""

import tempfile
from typing import Any

import torch
from common import OURS, make_entry, parse_arguments, save_entries, score_run
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    logging,
)
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from controlvae.integrations.trl import PolicyControl

Log = dict[str, list[float]]
_WORDS, _LENGTH, _STEPS = 16, 8, 500
_WINDOW = 50  # steps of a running mean
_HOSTS = {"GRPO": (GRPOConfig, GRPOTrainer), "RLOO": (RLOOConfig, RLOOTrainer)}


def make_model(seed: int) -> LlamaForCausalLM:
    """Return a random language model of one layer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=_WORDS + 2,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of the words w0, w1, ..."""
    vocabulary = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i + 2 for i in range(_WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def mean_number(completions: list[str], **kwargs: Any) -> list[float]:
    """Return the mean number of the words of each completion, between 0 and 1."""
    highest = _LENGTH * (_WORDS - 1)
    return [sum(int(word[1:]) for word in text.split()) / highest for text in completions]


def train(host: str, seed: int, targets: dict[str, float], **settings: Any) -> Log:
    """Train a policy and return the logged values of every step.

    Args:
        host: "GRPO" or "RLOO".
        seed: Seed of the run.
        targets: Targets of `PolicyControl`. None leaves the trainer as it is.
        settings: Settings of the trainer.
    """
    make_config, make_trainer = _HOSTS[host]
    with tempfile.TemporaryDirectory() as folder:
        make_model(seed).save_pretrained(folder)  # the trainer loads its reference from there
        config = make_config(
            folder,
            beta=0.04,
            max_steps=_STEPS,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=_LENGTH,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            seed=seed,
            **settings,
        )
        prompts = [f"w{i} w{j}" for i in range(_WORDS) for j in range(_WORDS)]
        trainer = make_trainer(
            LlamaForCausalLM.from_pretrained(folder),
            mean_number,
            config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=make_tokenizer(),
        )
        trainer.remove_callback(PrinterCallback)
        if targets:
            trainer.add_callback(PolicyControl(trainer, **targets))
        trainer.train()
    lines = [line for line in trainer.state.log_history if "reward" in line]
    return {name: [line[name] for line in lines] for name in lines[-1] if name != "epoch"}


def compare_kl(host: str, seeds: range) -> list[dict[str, Any]]:
    """Return the entries of the KL under `PolicyControl` and under a fixed coefficient."""
    entries = []
    fixed = {seed: train(host, seed, {})["kl"] for seed in seeds}
    for target in (0.1, 0.3, 1.0):
        runs = []
        for seed in seeds:
            log = train(host, seed, {"kl": target})
            for method, kl, weight in (
                (OURS, log["kl"], log["kl_weight"]),
                ("fixed 0.04", fixed[seed], [0.04] * _STEPS),
            ):
                runs.append(score_run(method, seed, target, kl, weight, window=_WINDOW))
        place = "loss" if host == "GRPO" else "reward"
        note = f"language model of one layer, KL in the {place}; own: a fixed beta of 0.04"
        entry = (f"TRL {host}", "trl transformers", "KL", "nats per token", target, runs, note)
        entries.append(make_entry(*entry))
    return entries


def compare_entropy(seeds: range) -> list[dict[str, Any]]:
    """Return the entries of the entropy under `PolicyControl` and under TRL's own controller."""
    entries = []
    for target in (0.5, 1.0, 2.0):
        runs = []
        for seed in seeds:
            log = train("GRPO", seed, {"entropy": target})
            measured, weight = log["entropy"], log["entropy_weight"]
            runs.append(score_run(OURS, seed, target, measured, weight, window=_WINDOW))
            log = train("GRPO", seed, {}, use_adaptive_entropy=True, entropy_target=target)
            measured, weight = log["entropy"], log["entropy_coef"]
            name = "adaptive entropy"
            runs.append(score_run(name, seed, target, measured, weight, window=_WINDOW))
        note = "language model of one layer; own: use_adaptive_entropy, entropy_coef_delta 0.005"
        entry = ("TRL GRPO", "trl transformers", "entropy", "nats per token", target, runs, note)
        entries.append(make_entry(*entry))
    return entries


def main() -> None:
    """Train all runs and write `trl_trainers.json`."""
    arguments = parse_arguments(__doc__, seeds=2)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    seeds = arguments.seeds
    entries = [*compare_entropy(seeds), *compare_kl("GRPO", seeds), *compare_kl("RLOO", seeds)]
    save_entries("trl_trainers", entries, arguments.out)


if __name__ == "__main__":
    main()
