"""Keep the entropy of a policy at 1.5 nats in a PPO loop in the style of CleanRL, in plain PyTorch.

Run `python examples/with_cleanrl.py --out entropy.png`.

In CleanRL's `ppo.py`, replace `args.ent_coef * entropy_loss` by

    control = cv.Controller(cv.Auto(1.5, direction="inverse"))  # before the loop
    loss = pg_loss - control.step(entropy_loss) * entropy_loss + v_loss * args.vf_coef

and in `sac_continuous_action.py` the step of `a_optimizer` by

    control = cv.Controller(cv.Auto(target_entropy, direction="inverse"))
    alpha = control.step(-log_pi.mean()).item()
"""

from collections.abc import Sequence

import torch
from common import Trace, parse_arguments
from torch import Tensor, nn
from torch.distributions import Categorical

import controlvae as cv

TARGET = 1.5
ENVIRONMENTS, LENGTH, EPOCHS, CLIP = 32, 16, 4, 0.2
# Eight directions of a step in the plane.
ANGLES = torch.arange(8) * torch.pi / 4
MOVES = 0.25 * torch.stack([ANGLES.cos(), ANGLES.sin()], 1)


def rollout(agent: nn.Module) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return observations, actions, their log-probabilities and their advantages.

    Points in a square have to reach the origin. The advantage is the normalised sum of the next
    four rewards, which are minus the squared distance.
    """
    position, observations, actions, logprobs, rewards = (
        torch.rand(ENVIRONMENTS, 2) * 2 - 1,
        [],
        [],
        [],
        [],
    )
    for _ in range(LENGTH):
        policy = Categorical(logits=agent(position))
        action = policy.sample()
        observations.append(position)
        actions.append(action)
        logprobs.append(policy.log_prob(action))
        position = (position + MOVES[action]).clamp(-1, 1)
        rewards.append(-position.square().sum(1) + observations[-1].square().sum(1))
    reward = torch.stack(rewards)
    padded = torch.cat([reward, torch.zeros(3, ENVIRONMENTS)])
    advantage = sum(padded[delay : delay + LENGTH] for delay in range(4))
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    return (
        torch.cat(observations),
        torch.cat(actions),
        torch.cat(logprobs),
        advantage.flatten(),
    )


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    torch.manual_seed(0)
    agent = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, len(MOVES)))
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)
    control = cv.Controller(cv.Auto(TARGET, direction="inverse"))
    trace = Trace(TARGET, [], [])
    for _ in range(options.steps // EPOCHS):
        with torch.no_grad():
            observations, actions, old_logprobs, advantages = rollout(agent)
        for _ in range(EPOCHS):
            policy = Categorical(logits=agent(observations))
            ratio = (policy.log_prob(actions) - old_logprobs).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            pg_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
            entropy_loss = policy.entropy().mean()
            ent_coef = control.step(entropy_loss)
            loss = pg_loss - ent_coef * entropy_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trace.kl.append(entropy_loss.item())
            trace.beta.append(ent_coef.item())
    trace.draw(options.out, units="nats", name="entropy")
    return trace


if __name__ == "__main__":
    main()
