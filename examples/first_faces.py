"""Prepare the images on which the CelebA presets train.

`python examples/first_faces.py img_align_celeba.zip --out data/celeba`

The result is one file of 30 MB with the first 10,000 aligned faces of CelebA at half size, 89x109.
The input is the published archive (mmlab.ie.cuhk.edu.hk/projects/CelebA.html) or its unpacked
folder. The images are for research and must not be published.
"""

import argparse
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

NAME = "celeba_10k_89x109.npz"


def open_images(path: Path) -> tuple[list[str], Callable[[str], bytes]]:
    """Return the sorted names of the images, and a function that reads one of them."""
    if path.is_dir():
        names = sorted(file.name for file in path.glob("*.jpg"))
        return names, lambda name: (path / name).read_bytes()
    archive = zipfile.ZipFile(path)
    return sorted(name for name in archive.namelist() if name.endswith(".jpg")), archive.read


def halve_image(data: bytes) -> bytes:
    """Return a JPEG file of half the height and width; each pixel is the mean of four."""
    image, file = Image.open(io.BytesIO(data)).convert("RGB"), io.BytesIO()
    image.reduce(2).save(file, "JPEG", quality=75)
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("faces", type=Path, help="img_align_celeba.zip, or its unpacked folder")
    parser.add_argument("--count", type=int, default=10_000, help="number of images")
    parser.add_argument("--out", type=Path, default=Path("data/celeba"), help="output folder")
    options = parser.parse_args()
    if not options.faces.is_dir() and not zipfile.is_zipfile(options.faces):
        parser.error(f"faces must be a folder or a zip archive, got {options.faces}")
    names, read = open_images(options.faces)
    if len(names) < options.count:
        parser.error(
            f"{options.faces} must have {options.count:,} .jpg files or more, got {len(names):,}"
        )
    files = [halve_image(read(name)) for name in names[: options.count]]
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(
        options.out / NAME,
        jpg=np.frombuffer(b"".join(files), np.uint8),
        offsets=np.cumsum([0, *map(len, files)]),
    )
    print(options.out / NAME)


if __name__ == "__main__":
    main()
