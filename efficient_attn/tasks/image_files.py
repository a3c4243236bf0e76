"""Images and labels from files: folders by class, CIFAR-10, data sets of Hugging Face."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from efficient_attn.tasks.task import SPLITS

PARTS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
"""The part that a folder or a split of a data set is, by its name in small letters."""
WHOLE = "whole"
"""The part of what is not divided."""
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
DAMAGED = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""What Pillow raises at files that it cannot read to their end."""
CIFAR_SHAPE = (3, 32, 32)
CIFAR_CLASSES = 10


@dataclass(frozen=True)
class LabelledImages:
    """parts: levels [count, (3,) side, side] and class numbers [count] of train, validation, test.
    classes: their names. sha256: of all contents, with part and class."""

    parts: dict[str, tuple[np.ndarray, np.ndarray]]
    classes: tuple[str, ...]
    sha256: str


class Item(NamedTuple):
    """content: the bytes that hold the image, equal for equal images of a source."""

    part: str
    label: str
    content: bytes
    image: Image.Image


@lru_cache(maxsize=4)
def read_images(
    folder: str, side: int, colour: bool, image_column: str, label_column: str
) -> LabelledImages:
    """Everything in `folder`, scaled to `side`, held back by contents where nothing else says.

    Of what is not divided, one in ten is validation and one in ten test; with a test part alone
    held back, or a validation part alone (which then is the test), one in ten of training is the
    validation part. A hash of the contents says which, so that no image is in two parts.

    Raises FileNotFoundError for no such folder, ValueError that names the file or the row for
    whatever cannot be read right, ImportError where `datasets` is missing.
    """
    parts, labels, tenths, images = [], [], [], []
    mark = hashlib.sha256()
    for item in _items(Path(folder), image_column, label_column):
        digest = hashlib.sha256(item.content).digest()
        mark.update(f"{item.part}\0{item.label}\0".encode() + digest)
        parts.append(item.part)
        labels.append(item.label)
        tenths.append(int.from_bytes(digest[:4], "big") % 10)
        images.append(levels_of(item.image, side, colour))
    held = set(parts) - {WHOLE, "train"}
    final = np.array([_final(part, tenth, held) for part, tenth in zip(parts, tenths, strict=True)])
    rows = {part: np.flatnonzero(final == part) for part in ("train", *SPLITS)}
    for part in rows:
        if not len(rows[part]):
            raise ValueError(
                f"{folder} holds {len(images)} images, which leaves none for {part}; give more, or "
                "divide them: train/CLASS/, validation/CLASS/ and test/CLASS/"
            )
    classes = sorted({labels[row] for row in rows["train"]})
    numbers = {name: number for number, name in enumerate(classes)}
    for label, part in zip(labels, final, strict=True):
        if label not in numbers:
            raise ValueError(f"{folder} has no image of class {label!r} in train, but in {part}")
    found = {
        part: (
            np.stack([images[row] for row in chosen]),
            np.array([numbers[labels[row]] for row in chosen]),
        )
        for part, chosen in rows.items()
    }
    return LabelledImages(found, tuple(classes), mark.hexdigest())


def _final(part: str, tenth: int, held: set[str]) -> str:
    if not held:
        return {8: "validation", 9: "test"}.get(tenth, "train")
    if len(held) == 1 and part == "train":
        return "validation" if tenth == 9 else "train"
    return "test" if len(held) == 1 else part


def _items(root: Path, image_column: str, label_column: str) -> Iterator[Item]:
    if not root.is_dir():
        raise FileNotFoundError(
            f"task.folder={root} is no folder; give one of images by class (CLASS/1.png, or "
            "train/CLASS/1.png), of CIFAR-10's binary version, or what save_to_disk of Hugging "
            "Face's datasets has written"
        )
    if list(root.glob("data_batch_*.bin")):
        return _of_cifar(root)
    if [path for path in root.glob("*") if path.suffix == ".pkl" or path.name == "data_batch_1"]:
        raise ValueError(
            f"task.folder={root} holds pickles, which can run any code when they are read: of "
            "CIFAR-10 take the binary version (cifar-10-binary.tar.gz), of others images by class"
        )
    if (root / "dataset_dict.json").exists() or (root / "state.json").exists():
        return _of_dataset(root, image_column, label_column)
    return _of_folders(root)


def _of_folders(root: Path) -> Iterator[Item]:
    """torchvision's ImageFolder, in parts or whole; files of other kinds are passed over."""
    folders = _folders(root)
    strange = [folder.name for folder in folders if folder.name.lower() not in PARTS]
    if not folders or (strange and len(strange) < len(folders)):
        raise ValueError(
            f"task.folder={root} holds the folders {[folder.name for folder in folders]}; give "
            "either one for each class, or train, validation and test with one for each class"
        )
    for part in [root] if strange else folders:
        for kind in _folders(part):
            files = [
                path
                for path in sorted(kind.rglob("*"))
                if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
            ]
            if not files:
                raise ValueError(f"{kind} holds no images ({', '.join(sorted(SUFFIXES))})")
            for path in files:
                content = path.read_bytes()
                name = WHOLE if strange else PARTS[part.name.lower()]
                yield Item(name, kind.name, content, decode(content, str(path)))


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


def _of_cifar(root: Path) -> Iterator[Item]:
    """CIFAR-10's binary version: a byte of label, then red, green and blue of 32×32 pixels."""
    size = int(np.prod(CIFAR_SHAPE))
    for path in sorted(root.glob("data_batch_*.bin")) + sorted(root.glob("test_batch.bin")):
        content = path.read_bytes()
        if not content or len(content) % (1 + size):
            raise ValueError(f"{path} has {len(content)} bytes, not a multiple of {1 + size}")
        part = "test" if path.name.startswith("test") else "train"
        for start in range(0, len(content), 1 + size):
            label, pixels = content[start], content[start + 1 : start + 1 + size]
            if label >= CIFAR_CLASSES:
                raise ValueError(f"{path}: label {label} at byte {start} is not one of CIFAR-10's")
            colours = np.frombuffer(pixels, np.uint8).reshape(CIFAR_SHAPE)
            image = Image.fromarray(np.ascontiguousarray(np.moveaxis(colours, 0, -1)))
            yield Item(part, str(label), pixels, image)


def _of_dataset(root: Path, image_column: str, label_column: str) -> Iterator[Item]:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"task.folder={root} is a data set of Hugging Face's datasets: "
            "pip install 'efficient-attn[data]'"
        ) from error
    loaded = datasets.load_from_disk(str(root))
    splits = loaded if isinstance(loaded, datasets.DatasetDict) else {WHOLE: loaded}
    for name, rows in splits.items():
        part = WHOLE if name == WHOLE else PARTS.get(name.lower())
        if part is None:
            raise ValueError(f"{root} has a split {name!r}; allowed: {', '.join(PARTS)}")
        for option, column in (("image_column", image_column), ("label_column", label_column)):
            if column not in rows.column_names:
                raise ValueError(
                    f"task.{option}={column!r} is no column of {root}; "
                    f"it has {', '.join(rows.column_names)}"
                )
        if not isinstance(rows.features[image_column], datasets.Image):
            raise ValueError(
                f"task.image_column={image_column!r} of {root} holds "
                f"{rows.features[image_column]}, not images"
            )
        names = getattr(rows.features[label_column], "names", None)
        plain = rows.cast_column(image_column, datasets.Image(decode=False))
        for number, row in enumerate(plain.select_columns([image_column, label_column])):
            place, value, stored = f"{root}: {name}[{number}]", row[label_column], row[image_column]
            known = isinstance(value, int | str)
            if not known or (names is not None and value not in range(len(names))):
                raise ValueError(f"{place} has no label ({label_column} is {value})")
            if not stored or not (stored["bytes"] or stored["path"]):
                raise ValueError(f"{place} has no image ({image_column} is {stored})")
            content = stored["bytes"] or Path(stored["path"]).read_bytes()
            label = str(value) if names is None else names[value]
            yield Item(part, label, content, decode(content, place))


def decode(content: bytes, name: str) -> Image.Image:
    """The image in the bytes of a file, of 8 bits without alpha; `name` says in errors which.

    Read as they are meant: palettes, 16 bits of grey, alpha without effect, and the orientation
    that a camera notes. ValueError for what is damaged, no image, transparent, or several frames.
    """
    try:
        file = Image.open(io.BytesIO(content))
        frames = getattr(file, "n_frames", 1)
        file.load()
        image = ImageOps.exif_transpose(file)
    except DAMAGED as error:
        raise ValueError(f"{name} is damaged or no image that can be read: {error}") from error
    if frames > 1:
        raise ValueError(f"{name} has {frames} frames; give one image a file")
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"{name} has pixels of 32 bits (mode {image.mode}); save it with 8 or 16")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if np.asarray(image.getchannel("A")).min() < 255:
            raise ValueError(f"{name} is transparent in places; put it on a background first")
    try:
        return image.convert("L" if image.mode in ("1", "L") else "RGB")
    except ValueError as error:
        raise ValueError(f"{name} has colours of a kind not read (mode {image.mode})") from error


def levels_of(image: Image.Image, side: int, colour: bool) -> np.ndarray:
    """uint8 [3, side, side] in colour, else [side, side], grey by ITU-R 601.

    What is not square loses as much at two opposite edges; then it is scaled, each pixel the
    weighted mean of those that it covers.
    """
    image = image.convert("RGB" if colour else "L")
    pixels = np.asarray(ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR))
    return np.moveaxis(pixels, -1, 0) if colour else pixels
