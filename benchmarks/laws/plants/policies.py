"""Policies: KL to a reference model, entropy of continuous and of discrete actions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from laws.plants.base import Losses, Plant, sample_classes
from laws.stack import MLP, Stack


class ReferencePolicy(Plant):
    """Policy over short sequences that earns a reward and stays near a reference policy.

    The objective of reinforcement learning from human feedback. The KL is the k1 estimate, the
    mean log ratio of the sampled tokens, and may be negative on a batch.

    Args:
        stack: Stack of runs.
        batch: Sequences per batch.
        tokens: Size of the vocabulary.
        length: Tokens of a sequence.
    """

    def __init__(self, stack: Stack, batch: int = 64, tokens: int = 12, length: int = 3) -> None:
        super().__init__(stack)
        self.batch, self.tokens, self.length = batch, tokens, length
        widths = (4 + tokens + length, 24, tokens)
        self.policy = MLP(stack, *widths)
        self.reference = [layer.weight.detach().clone() for layer in self.policy.layers]
        # Rewards of pairs of neighbouring tokens, and of tokens in a context.
        self.pairs = stack.constant(tokens, tokens, scale=1.0)
        self.preferences = stack.constant(4, tokens, scale=1.0)

    def losses(self, step: int) -> Losses:
        context = self.stack.normal(self.batch, 4)
        previous = context.new_zeros(*context.shape[:2], self.tokens)
        log_policy = log_reference = reward = torch.zeros(())
        for position in range(self.length):
            place = F.one_hot(torch.tensor(position), self.length).float()
            place = place.expand(*context.shape[:2], -1)
            inputs = torch.cat([context, previous, place], -1)
            logits = self.policy(inputs)
            token = sample_classes(self.stack, logits)
            log_policy = log_policy + _pick(logits.log_softmax(-1), token)
            log_reference = log_reference + _pick(self._reference(inputs).log_softmax(-1), token)
            chosen = F.one_hot(token, self.tokens).float()
            worth = torch.bmm(previous, self.pairs) + torch.bmm(context, self.preferences)
            reward, previous = reward + (worth * chosen).sum(-1), chosen
        ratio = (log_policy - log_reference).detach()
        objective = -(_centre(reward) * log_policy).mean(-1)
        # The score-function gradient of the KL; its value is not the KL.
        term = (_centre(ratio) * log_policy).mean(-1)
        return Losses(objective, term, ratio.mean(-1))

    def _reference(self, x: Tensor) -> Tensor:
        first, last = self.reference
        return torch.bmm(torch.bmm(x, first).tanh(), last)


class GaussianPolicy(Plant):
    """Squashed Gaussian policy with a learned critic; the controlled quantity is its entropy.

    Haarnoja et al., *Soft actor-critic algorithms and applications*, 2018, in one time step. The
    entropy grows with its weight and may be negative.

    Args:
        stack: Stack of runs.
        actions: Dimensions of an action.
        batch: Batch size.
        reward_scale: Factor of the rewards.
    """

    def __init__(
        self, stack: Stack, actions: int = 2, batch: int = 64, reward_scale: float = 5.0
    ) -> None:
        super().__init__(stack)
        self.actions, self.batch, self.reward_scale = actions, batch, reward_scale
        self.actor = MLP(stack, 4, 32, 2 * actions)
        self.critic = MLP(stack, 4 + actions, 32, 1)
        self.best = stack.constant(4, actions, scale=0.7)

    def losses(self, step: int) -> Losses:
        state = self.stack.normal(self.batch, 4)
        mean, log_scale = self.actor(state).chunk(2, -1)
        log_scale = log_scale.clamp(-8, 2)
        noise = self.stack.normal(self.batch, self.actions)
        raw = mean + log_scale.exp() * noise
        action = raw.tanh()
        log_density = -0.5 * noise.square() - log_scale - 0.9189385332046727
        # log(1 - tanh(x)^2), written so that it stays finite.
        log_density = log_density - 2 * (0.6931471805599453 - raw - F.softplus(-2 * raw))
        entropy = -log_density.sum(-1).mean(-1)
        value = self.critic.frozen(torch.cat([state, action], -1)).squeeze(-1)
        gap = action.detach() - torch.bmm(state, self.best).sin()
        reward = -self.reward_scale * gap.square().sum(-1)
        reward = reward + 0.1 * self.reward_scale * self.stack.normal(self.batch)
        guess = self.critic(torch.cat([state, action.detach()], -1)).squeeze(-1)
        critic_loss = (guess - reward).square().mean(-1)
        return Losses(critic_loss - value.mean(-1), -entropy, entropy)


class DiscretePolicy(Plant):
    """Policy gradient on a contextual bandit with an entropy bonus.

    Args:
        stack: Stack of runs.
        actions: Number of actions.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, actions: int = 16, batch: int = 64) -> None:
        super().__init__(stack)
        self.batch = batch
        self.policy = MLP(stack, 6, 32, actions, gain=0.1)
        self.worth = stack.constant(6, actions, scale=1.0)

    def losses(self, step: int) -> Losses:
        context = self.stack.normal(self.batch, 6)
        logits = self.policy(context)
        log_policy = logits.log_softmax(-1)
        action = sample_classes(self.stack, logits)
        reward = _pick(torch.bmm(context, self.worth), action)
        reward = reward + 0.5 * self.stack.normal(self.batch)
        entropy = -(log_policy.exp() * log_policy).sum(-1).mean(-1)
        objective = -(_centre(reward) * _pick(log_policy, action)).mean(-1)
        return Losses(objective, -entropy, entropy)


def _pick(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(-1, index[..., None]).squeeze(-1)


def _centre(values: Tensor) -> Tensor:
    return values - values.mean(-1, keepdim=True)
