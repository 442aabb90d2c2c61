"""Tests of the integration with TRL, with its real trainers and a random tiny language model."""

import json

import pytest
import torch

import controlvae as cv
from controlvae.errors import UserError

pytest.importorskip("trl")
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from controlvae.integrations.trl import PolicyControl

WORDS = ["<pad>", "<eos>", *(f"w{number}" for number in range(8))]
KL = cv.PI(0.02, ki=0.1, beta_init=0.3)
ENTROPY = cv.PI(1.8, ki=0.1, beta_init=0.2, direction="inverse")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a model: the trainer loads its reference from there."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_tokenizer():
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def count_low_words(completions, **kwargs):
    return [sum(int(word[1:]) < 4 for word in text.split()) / 4 for text in completions]


def make_trainer(folder, out, algorithm=GRPOTrainer, **settings):
    settings = {
        "max_steps": 4,
        "beta": 0.04,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 4,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        **settings,
    }
    config = (RLOOConfig if algorithm is RLOOTrainer else GRPOConfig)(str(out), **settings)
    prompts = Dataset.from_dict({"prompt": [f"w{number}" for number in range(8)] * 4})
    model = LlamaForCausalLM.from_pretrained(folder)
    return algorithm(
        model, count_low_words, config, train_dataset=prompts, processing_class=make_tokenizer()
    )


def logged(trainer, *names):
    lines = [line for line in trainer.state.log_history if "reward" in line]
    return [[line[name] for line in lines] for name in names]


def test_both_weights_follow_their_laws_step_by_step(folder, tmp_path):
    trainer = make_trainer(folder, tmp_path)
    trainer.add_callback(PolicyControl(trainer, kl=KL, entropy=ENTROPY))
    trainer.train()
    kl, kl_weight, entropy, weight = logged(trainer, "kl", "kl_weight", "entropy", "entropy_weight")
    for law, measured, weights in ((KL, kl, kl_weight), (ENTROPY, entropy, weight)):
        control = cv.Controller(law)
        assert weights == pytest.approx([control.step(value) for value in measured])
        assert len(set(weights)) > 1
    assert (trainer.beta, trainer.entropy_coef) == (kl_weight[-1], weight[-1])


def test_steps_without_a_log_line_update_the_law_too(folder, tmp_path):
    trainer = make_trainer(folder, tmp_path, logging_steps=3)
    control = PolicyControl(trainer, kl=KL)
    trainer.add_callback(control)
    trainer.train()
    assert control.controllers["kl"].state.step == 4


def test_numbers_start_at_the_coefficients_of_the_trainer(folder, tmp_path):
    trainer = make_trainer(folder, tmp_path)
    control = PolicyControl(trainer, kl=0.1, entropy=1.0)
    assert control.controllers["kl"].laws == (cv.Auto(0.1, beta_init=0.04),)
    assert control.controllers["entropy"].laws == (cv.Auto(1.0, direction="inverse"),)


def test_resumed_training_has_the_weights_of_an_unbroken_one(folder, tmp_path):
    weights = []
    for name, resume in (("whole", None), ("resumed", str(tmp_path / "whole" / "checkpoint-2"))):
        trainer = make_trainer(folder, tmp_path / name, save_strategy="steps", save_steps=2)
        trainer.add_callback(PolicyControl(trainer, kl=KL, entropy=ENTROPY))
        trainer.train(resume_from_checkpoint=resume)
        weights.append(logged(trainer, "kl_weight", "entropy_weight"))
    state = json.loads((tmp_path / "whole" / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["PolicyControl"]["kl"]["step"] == 2
    for whole, resumed in zip(*weights, strict=True):
        assert whole == pytest.approx(resumed)


def test_rloo_updates_when_it_generates(folder, tmp_path):
    trainer = make_trainer(folder, tmp_path, RLOOTrainer, steps_per_generation=4)
    control = PolicyControl(trainer, kl=KL)
    trainer.add_callback(control)
    trainer.train()
    assert control.controllers["kl"].state.step == 2  # every second optimiser step
    with pytest.raises(UserError, match="entropy_coef"):
        PolicyControl(trainer, entropy=1.0)


def test_trainers_that_cannot_be_controlled_are_refused(folder, tmp_path):
    trainer = make_trainer(folder, tmp_path, beta=0.0, use_adaptive_entropy=True)
    with pytest.raises(UserError, match="beta must not be zero"):
        PolicyControl(trainer, kl=0.1)
    with pytest.raises(UserError, match="use_adaptive_entropy"):
        PolicyControl(trainer, entropy=1.0)
    with pytest.raises(UserError, match="neither"):
        PolicyControl(trainer)
    with pytest.raises(UserError, match="inverse"):
        PolicyControl(make_trainer(folder, tmp_path), entropy=cv.PI(1.0))
