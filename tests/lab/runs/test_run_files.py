"""Files of a run folder: formats, unfinished lines and atomic writes."""

import json
import os
from pathlib import Path

import pytest

from controlvae.errors import UserError
from controlvae.lab.config import preset
from controlvae.lab.io import write_text, writing
from controlvae.lab.runs.folder import RunFolder


def test_newer_format_raises(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(preset("shapes2d-quick"), "controlvae train shapes2d-quick")
    assert folder.experiment() == preset("shapes2d-quick")
    content = json.loads(folder.experiment_file.read_text())
    folder.experiment_file.write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(UserError, match="controlvae"):
        folder.experiment()


def test_unfinished_last_line_is_ignored(tmp_path):
    folder = RunFolder(tmp_path)
    line = '{"step": %d, "kl": 1.0, "beta": 1.0, "reconstruction": 2.0}'
    folder.log_file.write_text(f"{line % 1}\n{line % 2}\n{line[:9]}")
    assert [record["step"] for record in folder.records()] == [1, 2]
    folder.log_file.write_text(f"{line % 1}\nnonsense\n{line % 2}\n")
    with pytest.raises(UserError, match="line 2"):
        folder.records()


def test_interrupted_write_leaves_the_old_file(tmp_path):
    folder = RunFolder(tmp_path / "run")
    figure = tmp_path / "run" / "figure.png"

    def interrupt():
        with writing(figure) as temporary:
            temporary.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    folder.require_empty()
    with writing(figure) as temporary:
        temporary.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    files = [(file.name, file.read_text()) for file in folder.path.iterdir()]
    assert files == [("figure.png", "old")]
    with pytest.raises(UserError, match=r"^cannot write \.: [^\n]*$"), writing(Path()) as temporary:
        temporary.write_text("a folder is not a file")


def test_stale_temporary_files_are_removed(tmp_path):
    stale, recent = tmp_path / ".part-1-table.md", tmp_path / ".part-2-table.md"
    for path in (stale, recent):
        path.write_text("| half")
    os.utime(stale, (0, 0))
    write_text(tmp_path / "table.md", "| whole |")
    assert sorted(path.name for path in tmp_path.iterdir()) == [recent.name, "table.md"]
