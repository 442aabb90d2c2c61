"""Batch norm over ranks: it takes the place of torch's layers and gives it back."""

import torch
from torch import nn

from controlvae.lab.ranks.batch_norm import RankBatchNorm, restore_batch_norm, share_batch_norm
from controlvae.lab.ranks.share import BatchShare


def test_layers_are_replaced_with_the_same_state_and_put_back():
    norm = nn.BatchNorm1d(3)
    module = nn.Sequential(nn.Linear(4, 3), nn.Sequential(norm, nn.InstanceNorm1d(3)))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert share_batch_norm(module, BatchShare(0, 2)) == 1
    replaced = module[1][0]
    assert isinstance(replaced, RankBatchNorm)
    assert module.state_dict().keys() == before.keys()
    assert [id(p) for p in replaced.parameters()] == [id(p) for p in norm.parameters()]
    replaced.running_mean.fill_(2.0)
    restore_batch_norm(module)
    assert module[1][0] is norm
    assert norm.running_mean.eq(2.0).all()


def test_evaluation_needs_no_other_rank():
    norm = nn.BatchNorm2d(3).eval()
    norm.running_mean.uniform_()
    norm.running_var.uniform_(0.5, 2.0)
    module, x = nn.Sequential(norm), torch.randn(5, 3, 4, 4)
    expected = module(x)
    share_batch_norm(module, BatchShare(0, 2))
    torch.testing.assert_close(module(x), expected)
