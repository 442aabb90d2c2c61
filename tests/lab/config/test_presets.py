"""Lookup of presets, also under their former names."""

import warnings

import pytest

from controlvae.errors import UserError
from controlvae.lab.config import PRESETS, RenamedWarning, preset
from controlvae.lab.config.presets import preset_folder


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("shapes2d-in-turn-18", "shapes2d-staggered-18"),
        ("shapes2d-priced-18", "shapes2d-weighted-18"),
        ("pictures", "images"),
        ("pictures-vae", "images-vae"),
    ],
)
def test_former_name_of_preset_is_accepted_with_a_warning(former, name):
    with pytest.warns(RenamedWarning, match=name) as caught:
        assert preset(former).name == name
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert former not in list(PRESETS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PRESETS[former] == preset(name)


def test_quick_presets_are_listed_before_those_of_the_paper():
    names = list(PRESETS)
    assert len(names) == len(set(names)) == 89
    quick = [names.index(name) for name in ("shapes2d-quick", "images", "text-quick")]
    assert max(quick) < names.index("shapes2d-vae")
    assert all(PRESETS[name].name == name for name in names)


def test_runs_under_a_former_name_are_found(tmp_path):
    current, former = tmp_path / "shapes2d-staggered-18", tmp_path / "shapes2d-in-turn-18"
    assert preset_folder(tmp_path, current.name) == current
    former.mkdir()
    assert preset_folder(tmp_path, current.name) == former
    current.mkdir()
    assert preset_folder(tmp_path, current.name) == current


def test_unknown_preset_raises_with_a_suggestion():
    with pytest.raises(UserError, match=r"'shapes2d-quik'.*'shapes2d-quick'"):
        preset("shapes2d-quik")
