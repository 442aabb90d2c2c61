"""Suite of laws: stacks of runs are independent, and every plant obeys its weight."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import controlvae as cv

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from laws.data import data_file
from laws.plants.analytic import LogLag
from laws.plants.policies import ReferencePolicy
from laws.plants.sequences import CountsVAE
from laws.plants.vectors import LinearVAE
from laws.problem import Problem
from laws.problems import PROBLEMS
from laws.stack import Conv, Linear, Stack, from_channels, patchify, to_channels, unpatchify
from laws.train import train_stack


def plants() -> list[Problem]:
    return list({each.plant: each for each in PROBLEMS}.values())


def test_suite_has_enough_problems_and_plants():
    assert len(PROBLEMS) >= 44
    assert len(plants()) >= 22


@pytest.mark.parametrize("problem", plants(), ids=lambda each: each.plant.__name__)
def test_every_plant_trains_and_obeys_its_direction(problem):
    needs_data = not data_file().is_file()
    if needs_data and problem.plant not in (LinearVAE, ReferencePolicy, LogLag, CountsVAE):
        pytest.skip("python benchmarks/laws --prepare-data")
    laws = [cv.Constant(1e-8), cv.Constant(1e8)]
    problem = replace(problem, moves=(), disturbances=(), window=10)
    light, heavy = train_stack(problem, laws, [1], steps=30).measured
    assert np.isfinite([light, heavy]).all()
    assert light[0] == heavy[0]
    grows = heavy[-10:].mean() > light[-10:].mean()
    assert grows == (problem.direction == "inverse")


def test_a_run_does_not_depend_on_its_neighbours():
    problem = Problem("test", "test", LinearVAE, 4.0, 40, moves=((20, 8.0),), window=10)
    pair = [cv.PI(4.0, ki=1e-3), cv.LagrangeMultiplier(4.0)]
    both = train_stack(problem, pair, [1, 2])
    alone = train_stack(problem, pair[1:], [2])
    assert both.measured.shape == (4, 40)
    np.testing.assert_allclose(both.measured[3], alone.measured[0], rtol=1e-4)
    np.testing.assert_allclose(both.weight[3], alone.weight[0], rtol=1e-4, atol=1e-7)


def test_equal_seeds_start_from_equal_parameters_and_noise():
    stack = Stack([5, 6], laws=3)
    layer = Linear(stack, 4, 2)
    assert torch.equal(layer.weight[:2], layer.weight[4:])
    noise = stack.normal(3)
    assert torch.equal(noise[0], noise[2])
    assert not torch.equal(noise[0], noise[1])


@pytest.mark.parametrize("transposed", [False, True])
def test_stacked_convolution_equals_separate_ones(transposed):
    stack = Stack([5, 6], laws=1)
    conv, x = Conv(stack, 3, 4, transposed=transposed), torch.randn(2, 5, 3, 8, 8)
    outputs = from_channels(conv(to_channels(x)), 2)
    convolve = torch.conv_transpose2d if transposed else torch.conv2d
    for run in range(2):
        expected = convolve(x[run], conv.weight[run], conv.bias[run], stride=2, padding=1)
        torch.testing.assert_close(outputs[run], expected, rtol=1e-4, atol=1e-5)


def test_patches_can_be_undone():
    x = torch.randn(2, 3, 8, 8, 5)
    assert torch.equal(unpatchify(patchify(x, 4), 4), x)
