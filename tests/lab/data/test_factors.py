"""Tables of factors of user-supplied images: reading them, and errors in them."""

import unicodedata

import numpy as np
import pytest
from photos import photos, save
from PIL import Image

from controlvae.errors import UserError
from controlvae.lab.config import Images
from controlvae.lab.data.registry import load_dataset

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def three(tmp_path):
    save(tmp_path / "set", photos(3), ["a.png", "b.png", "d/c.png"])
    return tmp_path


@pytest.mark.parametrize(
    ("table", "factors", "names", "classes"),
    [
        (
            "shape,size\nround,10\nflat,9\nround,9\n",
            "t.csv",
            ("shape", "size"),
            [[1, 1], [0, 0], [1, 0]],
        ),
        ("size,file\n9,d/c.png\n10,a.png\n9,./b.png\n", "t.csv", ("size",), [[1], [0], [0]]),
        ("a,b,c\n1,x,2\n1,y,3\n2,x,2\n", "t.csv:c,a", ("c", "a"), [[0, 0], [1, 0], [0, 1]]),
        (
            'File;"size, cm"\nd/c.png;9\na.png;10\nb.png;9\n',
            "t.csv",
            ("size, cm",),
            [[1], [0], [0]],
        ),
        ("a\tb\r\n1\tx\r\n1\ty\r\n2\tx\r\n", "t.csv", ("a", "b"), [[0, 0], [0, 1], [1, 0]]),
        (",a\n0,1\n1,1\n2,2\n", "t.csv", ("a",), [[0], [0], [1]]),  # as pandas writes its index
        ("filename,size\nd/c.png,9\na.png,10\nb.png,9\n", "t.csv:size", ("size",), [[1], [0], [0]]),
        ("size,id\n9,c\n10,a\n9,b\n", "t.csv", ("size",), [[1], [0], [0]]),
        ("size,name\n9,d/c\n10,a\n9,b\n", "t.csv", ("size",), [[1], [0], [0]]),
        ("a,b,c\n1,x,2\n1,y,3\n2,x,2\n", "t.csv:c , a", ("c", "a"), [[0, 0], [1, 0], [0, 1]]),
        ("size\n1,5\n1,5\n2,5\n", "t.csv", ("size",), [[0], [0], [1]]),
        ("label\ncat, big\ndog, small\ncat, big\n", "t.csv", ("label",), [[0], [1], [0]]),
        ('a,"b (1;2;3)"\n1,2\n1,3\n2,2\n', "t.csv", ("a", "b (1;2;3)"), [[0, 0], [0, 1], [1, 0]]),
        (
            "file,size\nC:\\me\\c.png,9\nC:\\me\\a.png,10\nC:\\me\\b.png,9\n",
            "t.csv",
            ("size",),
            [[1], [0], [0]],
        ),
    ],
)
def test_table_values_become_class_numbers(three, table, factors, names, classes):
    (three / "set" / "t.csv").write_text(table)  # next to the images
    examples = load_dataset(Images("set", factors=factors), three)
    assert examples.factor_names == names
    assert examples.factors.tolist() == classes


def test_accents_match_in_composed_and_decomposed_form(tmp_path):
    names = [unicodedata.normalize("NFD", name) for name in ("a.png", "prüf.png", "über.png")]
    save(tmp_path / "set", photos(3), names)
    (tmp_path / "t.csv").write_text(
        "file,size\nüber.png,9\nprüf.png,10\na.png,9\n", encoding="utf-8"
    )
    assert load_dataset(Images("set", factors="t.csv"), tmp_path).factors.tolist() == [
        [0],
        [1],
        [0],
    ]


def test_utf_16_tables_are_read_and_latin_1_raises(three):
    for encoding in ("utf-16", "utf-8-sig"):
        (three / "t.csv").write_text("größe\tb\n1\t1\n2\t2\n1\t2\n", encoding=encoding)
        assert load_dataset(Images("set", factors="t.csv"), three).factor_names == ("größe", "b")
    (three / "t.csv").write_text("größe\n1\n2\n1\n", encoding="latin-1")
    with pytest.raises(UserError, match=r"t\.csv .*UTF-8"):
        load_dataset(Images("set", factors="t.csv"), three)


@pytest.mark.parametrize(
    ("heading", "cells", "size"),
    [
        ("id", "3210", [1, 1, 0, 0]),  # names, according to the heading
        ("rank", "3210", [0, 0, 1, 1]),  # a factor whose values equal the names
        ("id", "1234", [0, 0, 1, 1]),  # counts from one, so it names no image 0
        ("weight", ("3.2", "1.7", "0.4", "2.9"), [0, 0, 1, 1]),
    ],
)
def test_numbers_are_names_only_under_a_suitable_heading(tmp_path, heading, cells, size):
    save(tmp_path / "set", photos(4), [f"{number}.png" for number in range(4)])
    rows = [f"{cell},{value}" for cell, value in zip(cells, (1, 1, 2, 2), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join([f"{heading},size", *rows]))
    assert (
        load_dataset(Images("set", factors="t.csv:size"), tmp_path).factors[:, 0].tolist() == size
    )


def test_factors_in_words_are_unordered(three):
    (three / "t.csv").write_text("kind,size,number\ncat,1.5,1\ndog,2,2\ncat,1.5,2\n")
    examples = load_dataset(Images("set", factors="t.csv"), three)
    assert examples.unordered == ("kind",)
    assert examples.factors.tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 1]]
    assert {name: values.tolist() for name, values in examples.levels.items()} == {
        "size": [1.5, 2],
        "number": [1, 2],
    }
    (three / "t.csv").write_text("a;b\n0,5;1\n10,25;1\n0,5;2\n")
    assert load_dataset(Images("set", factors="t.csv"), three).levels["a"].tolist() == [0.5, 10.25]


def test_rows_without_names_raise_if_the_order_is_ambiguous(tmp_path):
    for number in (1, 2, 10):
        Image.new("L", (8, 8), number).save(tmp_path / f"p{number}.png")
    (tmp_path / "t.csv").write_text("a\n1\n1\n2\n")
    with pytest.raises(UserError, match=r"row 2 .*p10.png.*p2.png.*'file'"):
        load_dataset(Images(str(tmp_path), factors="t.csv"))
    (tmp_path / "t.csv").write_text("file,a\np1.png,1\np2.png,1\np10.png,2\n")
    assert load_dataset(Images(str(tmp_path), factors="t.csv")).factors.tolist() == [[0], [1], [0]]


@pytest.mark.parametrize(
    "names",
    [
        ("c.png", "c1.png", "c2.png"),
        ("0.1.png", "0.15.png", "0.2.png"),
        ("a1.png", "b10.png", "c2.png"),
    ],
)
def test_unambiguous_order_needs_no_name_column(tmp_path, names):
    for name in names:
        Image.new("L", (8, 8)).save(tmp_path / name)
    (tmp_path / "t.csv").write_text("a\n1\n1\n2\n")
    assert load_dataset(Images(str(tmp_path), factors="t.csv")).factors.tolist() == [[0], [0], [1]]


def test_factors_of_an_array(three):
    np.savez(
        three / "t.npz", size=np.array([0.5, 0.1, 0.5]), place=np.array([[3, 4], [5, 4], [3, 9]])
    )
    examples = load_dataset(Images("set", factors="t.npz"), three)
    assert examples.factor_names == ("size", "place 0", "place 1")
    assert examples.factors.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert load_dataset(Images("set", factors="t.npz:size"), three).factor_names == ("size",)


@pytest.mark.parametrize(
    ("table", "factors", "message"),
    [
        ("a\n1\n2\n", "t.csv", "2 rows under 'a' for 3 images"),
        ("file,a\na.png,1\nb.png,2\n", "t.csv", "a row for d/c.png is missing; add it"),
        (
            "name,a\na.png,1\nb.png,2\n",
            "t.csv:a",
            "by its column 'name': a row for d/c.png is missing",
        ),
        (
            "name,a\na.png,1\nb.png,2\nx.png,1\n",
            "t.csv:a",
            "by its column 'name': a row for d/c.png is missing",
        ),
        (
            "file,a\nx.png,1\ny.png,2\nz.png,1\n",
            "t.csv",
            "'x.png'.*'a.png'",
        ),
        (
            "file,a\na.png,1\nb.png,2\nd/c.png,1\ne.png,1\n",
            "t.csv",
            "image of e.png is missing",
        ),
        ("file,a\na.png,1\na.png,2\nd/c.png,1\n", "t.csv", "1 images twice"),
        ("shape,a\n1,1\n2,2\n3,3\n", "t.csv:shpae", "no column in .*; did you mean 'shape'"),
        ("a,b\n1,1\n2\n3,3\n", "t.csv", "row 2 has 1 values for 2 columns"),
        ("a,a\n1,1\n", "t.csv", "must name each column once"),
        ("a,b\n1,x\n2,\n1,x\n", "t.csv", "'b' has no value in row 2"),
        ("a,b\n1,nan\n2,1\n1,1\n", "t.csv", "'b' has no value in row 1"),
        ("a,b\n1,inf\n2,1\n1,1\n", "t.csv", "'b' has no value in row 1"),
        ("a,b\n1,1\n2,NA\n1,1\n", "t.csv", "'b' has 'NA' in row 2 among numbers"),
        ("a,b\n1,x\n2,NA\n1,x\n", "t.csv", "'b' has no value in row 2"),
        (
            'a,b\n1,"0,5"\n2,"1,5"\n1,"0,5"\n',
            "t.csv",
            "'b' has '0,5' in row 1; write fractions with a point",
        ),
        (
            ",a\nc,1\nb,2\na,1\n",
            "t.csv",
            "must name each column once, got ,a; .*'file'",
        ),
        ("number,a\n7,1\n8,2\n9,1\n", "t.csv", "'number' has 3 values in 3 rows.*'file'"),
        ("", "t.csv", "no column of factors"),
        ("", "u.csv", "no file or folder .u.csv. here"),
    ],
)
def test_tables_that_do_not_fit_raise_in_one_line(three, table, factors, message):
    (three / "t.csv").write_text(table)
    with pytest.raises(UserError, match=message) as raised:
        load_dataset(Images("set", factors=factors), three)
    assert "\n" not in str(raised.value)
