"""The disk cache of decoded images and unpacked arrays."""

import os
import shutil
import time
import tracemalloc

import numpy as np
import pytest
from photos import photos, pixels_of, save

from controlvae.errors import UserError
from controlvae.lab.config import Images
from controlvae.lab.data import cache
from controlvae.lab.data.images import numpy_files, user_images
from controlvae.lab.data.registry import load_dataset

pytestmark = pytest.mark.usefixtures("own_folders")


def test_decoded_images_are_cached_until_their_source_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_MIN_CACHED_BYTES", 0)
    path = save(tmp_path / "set", photos(3), ["a.png", "b.png", "c.png"])
    first = load_dataset(Images(path))
    before = list((tmp_path / "cache").iterdir())
    assert len(before) == 1
    with monkeypatch.context() as context:
        context.setattr(user_images, "decode_image_files", None)
        np.testing.assert_array_equal(pixels_of(load_dataset(Images(path))), pixels_of(first))
    stat = (tmp_path / "set" / "b.png").stat()
    save(tmp_path / "set", photos(1, seed=9), ["b.png"])
    # Some copying programs restore the time of the last modification.
    os.utime(tmp_path / "set" / "b.png", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    np.testing.assert_array_equal(pixels_of(load_dataset(Images(path)))[1], photos(1, seed=9)[0])
    now = list((tmp_path / "cache").iterdir())
    assert len(now) == 1
    assert now != before
    now[0].write_bytes(now[0].read_bytes()[:-1])  # truncated
    np.testing.assert_array_equal(pixels_of(load_dataset(Images(path)))[0], photos(3)[0])
    (tmp_path / "set" / "c.png").unlink()
    assert len(load_dataset(Images(path))) == 2
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_large_array_of_archive_is_mapped_from_cache(tmp_path, monkeypatch, write):
    monkeypatch.setattr(cache, "_MIN_CACHED_BYTES", 1 << 20)
    monkeypatch.setattr(numpy_files, "_CHUNK_BYTES", 1 << 16)
    pixels, folder = photos(2_000, 32, 32), tmp_path / "cache"
    write(tmp_path / "x.npz", imgs=pixels)
    load_dataset(Images("x.npz", images=1), tmp_path)  # imports take memory, too
    shutil.rmtree(folder)
    tracemalloc.start()
    examples = load_dataset(Images("x.npz"), tmp_path)
    assert tracemalloc.get_traced_memory()[1] < pixels.nbytes / 4
    tracemalloc.stop()
    np.testing.assert_array_equal(pixels_of(examples), pixels)
    (file,) = folder.iterdir()
    with monkeypatch.context() as context:
        context.setattr(np, "frombuffer", None)  # nothing is unpacked again
        np.testing.assert_array_equal(load_dataset(Images("x.npz"), tmp_path).rows, examples.rows)
    write(tmp_path / "x.npz", imgs=pixels[::-1])
    np.testing.assert_array_equal(pixels_of(load_dataset(Images("x.npz"), tmp_path)), pixels[::-1])
    assert list(folder.iterdir()) != [file]
    assert len(list(folder.iterdir())) == 1


def test_corrupt_archive_leaves_nothing_in_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_MIN_CACHED_BYTES", 0)
    np.savez(tmp_path / "x.npz", imgs=photos(100))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"x.npz cannot be read .*: Bad CRC[^\n]*$"):
        load_dataset(Images("x.npz"), tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_unfinished_cache_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_MIN_CACHED_BYTES", 0)
    path = save(tmp_path / "set", photos(3), ["a.png", "b.png", "c.png"])
    (tmp_path / "cache").mkdir()
    stale, in_use = (
        tmp_path / "cache" / f"{cache._UNFINISHED_PREFIX}{name}" for name in ("stale", "in-use")
    )
    for file, age in ((stale, 3_600), (in_use, 0)):
        file.write_bytes(b"half")
        os.utime(file, (time.time() - age,) * 2)
    load_dataset(Images(path))
    assert (stale.exists(), in_use.exists()) == (False, True)


def test_unwritable_cache_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_MIN_CACHED_BYTES", 0)
    (tmp_path / "cache").write_text("a file where a folder should be")
    path = save(tmp_path / "set", photos(3), ["a.png", "b.png", "c.png"])
    np.testing.assert_array_equal(pixels_of(load_dataset(Images(path))), photos(3))
