"""Hold the KL of a policy to its reference with the adaptive KL controller of RLHF programs.

    python benchmarks/hosts/rlhf.py

A bigram language model is trained by REINFORCE with a leave-one-out baseline. The coefficient times
the log ratio is subtracted from the reward, as verl, OpenRLHF and SkyRL do, and the controller is
updated once per batch with the mean KL of a completion and the number of completions. The rival is
the original formula with its defaults (initial coefficient 0.2, horizon 10,000). Takes about two
minutes of one core.
"""

import torch
import torch.nn.functional as F
from common import OURS, make_entry, parse_arguments, save_entries, score_run

from controlvae.integrations.rlhf import AdaptiveKLController

_WORDS, _LENGTH, _PROMPTS, _GROUP, _STEPS = 16, 8, 32, 8, 2_000


def train(controller: AdaptiveKLController, seed: int) -> tuple[list[float], list[float]]:
    """Train a policy and return the KL and the coefficient of every step."""
    torch.manual_seed(seed)
    policy = torch.nn.Parameter(1.5 * torch.randn(_WORDS, _WORDS))
    reference = F.log_softmax(policy.detach().clone(), 1)
    values = torch.rand(_WORDS, _WORDS)  # reward of each pair of words
    optimiser = torch.optim.Adam([policy], lr=1e-2)
    kls, weights = [], []
    for _ in range(_STEPS):
        log_probability = F.log_softmax(policy, 1)
        words = sample_words(log_probability.detach().exp())
        pair = (words[:, :-1], words[:, 1:])
        chosen = log_probability[pair].sum(1)
        with torch.no_grad():
            kl = chosen - reference[pair].sum(1)
            score = values[pair].sum(1) - controller.value * kl
            score = score.view(_PROMPTS, _GROUP)
            advantage = (score - score.mean(1, keepdim=True)) * _GROUP / (_GROUP - 1)
        loss = -(advantage.flatten() * chosen).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        kls.append(kl.mean().item())
        weights.append(controller.value)
        controller.update(kls[-1], n_steps=len(kl))
    return kls, weights


def sample_words(probability: torch.Tensor) -> torch.Tensor:
    """Return prompts of one word with a group of completions each."""
    words = [torch.randint(_WORDS, (_PROMPTS,)).repeat_interleave(_GROUP)]
    for _ in range(_LENGTH):
        words.append(torch.multinomial(probability[words[-1]], 1)[:, 0])
    return torch.stack(words, 1)


def main() -> None:
    """Train all runs and write `rlhf.json`."""
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    entries = []
    for target in (0.5, 2.0, 6.0):
        runs = []
        for seed in arguments.seeds:
            for method, law in ((OURS, None), ("AdaptiveKLController", "adaptive")):
                controller = AdaptiveKLController(0.2, target, 10_000, law=law)
                runs.append(score_run(method, seed, target, *train(controller, seed)))
        note = (
            "bigram language model, KL in the reward, own: the original formula with its defaults, "
            "equal to the classes of verl, OpenRLHF and SkyRL"
        )
        entry = ("verl, OpenRLHF, SkyRL", "", "KL", "nats per completion", target, runs, note)
        entries.append(make_entry(*entry))
    save_entries("rlhf", entries, arguments.out)


if __name__ == "__main__":
    main()
