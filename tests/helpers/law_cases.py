"""Laws and a trace of measurements that tests of the controller and of integrations share."""

import controlvae as cv

LAWS = [
    cv.PI(18.0),
    cv.PI(cv.Staircase(0.5, 18.0, 0.15, every=5), beta_min=1.0, beta_max=float("inf"), ema=0.5),
    cv.PID(18.0, kd=0.1),
    cv.LagrangeMultiplier(18.0, alpha=1e-3),
    cv.Capacity(18.0, gamma=10.0),
    cv.Constant(4.0),
    cv.Linear(0.0, 1.0, steps=10),
    cv.Sigmoid(steps=10),
    cv.Cyclical(period=10),
]
TRACE = [0.1, 3.0, 40.0, 25.0, float("nan"), 22.0, 17.0, 16.0, 30.0, 12.0]
