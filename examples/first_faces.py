"""The faces that the CelebA presets train on: `python examples/first_faces.py img_align_celeba.zip --out data/celeba`.

The first 10,000 aligned faces of CelebA, halved to 89x109, as one file of 30 MB. Takes the archive as it is published
(mmlab.ie.cuhk.edu.hk/projects/CelebA.html), or the folder it unpacks to. Faces are for research, not to be published.
"""

import argparse
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

NAME = "celeba_10k_89x109.npz"


def opened(place: Path) -> tuple[list[str], Callable[[str], bytes]]:
    """The names of its pictures in order, and how to read one."""
    if place.is_dir():
        return sorted(path.name for path in place.glob("*.jpg")), lambda name: (
            place / name
        ).read_bytes()
    archive = zipfile.ZipFile(place)
    return sorted(name for name in archive.namelist() if name.endswith(".jpg")), archive.read


def halved(data: bytes) -> bytes:
    """A JPEG file of half the height and width, each pixel the mean of four."""
    picture, file = Image.open(io.BytesIO(data)).convert("RGB"), io.BytesIO()
    picture.reduce(2).save(file, "JPEG", quality=75)
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "faces", type=Path, help="img_align_celeba.zip, or the folder of its pictures"
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("data/celeba"), help="a folder")
    given = parser.parse_args()
    if not given.faces.is_dir() and not zipfile.is_zipfile(given.faces):
        parser.error(f"{given.faces} is no folder and no zip archive")
    names, read = opened(given.faces)
    if len(names) < given.count:
        parser.error(f"{given.faces} holds {len(names):,} .jpg files, fewer than {given.count:,}")
    files = [halved(read(name)) for name in names[: given.count]]
    given.out.mkdir(parents=True, exist_ok=True)
    np.savez(
        given.out / NAME,
        jpg=np.frombuffer(b"".join(files), np.uint8),
        offsets=np.cumsum([0, *map(len, files)]),
    )
    print(given.out / NAME)


if __name__ == "__main__":
    main()
