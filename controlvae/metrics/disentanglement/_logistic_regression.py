"""Multinomial logistic regression, solved to its optimum: the classifier of several scores."""

import numpy as np
import torch


def logistic_regression(
    points: np.ndarray,
    labels: np.ndarray,
    classes: int,
    *,
    penalty: float = 1.0,
    balanced: bool = False,
    max_iter: int = 1_000,
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise Σ -c ln p(label) + penalty/2 Σ weight² over weights and offsets.

    The default is scikit-learn's LogisticRegression with C = 1. Of two classes it penalises one
    vector, the difference of the two here, so their penalty counts twice.

    Args:
        points: Inputs, (points, columns).
        labels: Class of each point, (points,).
        classes: Number of classes.
        penalty: Weight of the squared weights. Without one, separable classes have no optimum and
            `max_iter` decides.
        balanced: Weight c of a point: points / (classes · points of its class), instead of 1.
        max_iter: Largest number of L-BFGS iterations.

    Returns:
        Weights (columns, classes) and offsets (classes,).
    """
    x, y = torch.from_numpy(points), torch.from_numpy(labels)
    weight = torch.zeros(x.shape[1], classes, dtype=x.dtype, requires_grad=True)
    offset = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    counts = torch.bincount(y, minlength=classes).to(x)
    share = len(x) / (classes * counts) if balanced else None
    ridge = penalty * (2 if classes == 2 else 1) / (2 * len(x))
    solver = torch.optim.LBFGS(
        [weight, offset],
        max_iter=max_iter,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        solver.zero_grad()
        # The loss is per point: a sum over thousands of points would make the first step too long.
        logits = torch.addmm(offset, x, weight)
        cost = torch.nn.functional.cross_entropy(logits, y, weight=share)
        loss = cost + ridge * (weight**2).sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)
    return weight.detach().numpy(), offset.detach().numpy()
