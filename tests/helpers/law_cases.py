"""Laws and a trace of measurements that tests of the controller and of integrations share."""

import controlvae as cv

LAWS = [
    cv.PI(18.0),
    cv.PI(cv.Staircase(0.5, 18.0, 0.15, every=5), beta_min=1.0, beta_max=float("inf"), ema=0.5),
    cv.PID(18.0, kd=0.1),
    cv.LagrangeMultiplier(18.0, alpha=1e-3),
    cv.LagrangeMultiplier(18.0, alpha=1e-2, projected=True),
    cv.NuPI(18.0, nu=0.5),
    cv.IncrementalPI(18.0, beta_init=1.0),
    cv.AdaptiveKL(18.0),
    cv.LogLagrange(18.0),
    cv.Auto(18.0),
    cv.Auto(18.0, reach_in=400),
    cv.Auto(-18.0, direction="inverse", constraint="at_least"),
    cv.Geco(18.0),
    cv.Capacity(18.0, gamma=10.0),
    cv.PI(18.0, direction="inverse", constraint="at_least"),
    cv.Constant(4.0),
    cv.Linear(0.0, 1.0, steps=10),
    cv.Sigmoid(steps=10),
    cv.Cyclical(period=10),
]
TRACE = [0.1, 3.0, 40.0, 25.0, float("nan"), 22.0, 17.0, 16.0, 30.0, 12.0]
