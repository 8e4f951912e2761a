"""Pictures of one's own, by class: a folder with a folder for each class, or a file that lists pictures and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch

from ...engine.errors import UsageError
from ..packages import imported
from ..prompts.labelled_files import KINDS, ColumnNames, read_labelled, require_classes, split_by_file
from ..texts import Labelled, Texts, split_by_class

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

Sample = tuple[torch.Tensor, int]


class Pictures:
    """A map-style data set: pictures, uint8 (channels, side, side), and labels. Each read decodes the file.

    Rows are paths, from a folder on, and labels. A picture is scaled until its shorter side fits, and its middle is taken.
    """

    def __init__(self, folder: Path, rows: Sequence[tuple[str, int]], side: int, channels: int) -> None:
        self.folder, self.rows, self.side, self.mode = folder, rows, side, "L" if channels == 1 else "RGB"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        path, label = self.rows[index]
        return picture(self.folder / path, self.side, self.mode), label


def picture(source: Path | IO[bytes], side: int, mode: str, where: str | None = None) -> torch.Tensor:
    """uint8 (channels, side, side). ``where``: its name in an error; by default its path in ``params.data``."""
    images = imported("PIL.Image", "recipes")
    try:
        with images.open(source) as image:
            scale = side / min(image.size)
            width, height = (max(side, round(length * scale)) for length in image.size)
            seen = image.convert(mode).resize((width, height), images.Resampling.BILINEAR)
            left, top = (width - side) // 2, (height - side) // 2
            pixels = np.array(seen.crop((left, top, left + side, top + side)))
    except (OSError, ValueError, SyntaxError, images.DecompressionBombError) as error:
        raise UsageError(f"{where or f'params.data: {source}'} cannot be read as a picture: {' '.join(str(error).split())[:200]}") from None
    return torch.from_numpy(pixels[None] if mode == "L" else pixels.transpose(2, 0, 1).copy())


def read(data: str, columns: ColumnNames, held_out: str) -> tuple[Path, Texts]:
    """The pictures' folder, and the paths below it, with labels, to train on and held out."""
    path = Path(data).expanduser()
    if path.suffix.lower() in KINDS:
        found = read_labelled(str(path.absolute()), columns=columns, held_out=str(Path(held_out).absolute()) if held_out else "", most=None)
        folder = path.absolute().parent
    else:
        folder = path.absolute()
        rows = _of_folder("data", path)
        if held_out:
            others = Path(held_out).expanduser().absolute()
            found = split_by_file(rows, [(str(others / name), label) for name, label in _of_folder("held_out", others)], held_out)
        else:
            found = split_by_class(rows)
        require_classes(data, found, held_out=held_out)
    for name, _ in (*found.train, *found.held_out):
        if not (folder / name).is_file():
            raise UsageError(f"params.data: {path.name} names the picture {name}, and there is no {folder / name}")
    return folder, found


def _of_folder(field: str, folder: Path) -> list[Labelled]:
    if not folder.is_dir():
        wrong = "is neither a folder nor a file of a known kind" if folder.exists() else "does not exist"
        raise UsageError(
            f"params.{field}: {folder.absolute()} {wrong}; give a folder with a folder of pictures for each class, or FILE.csv"
        )
    classes = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    rows = [
        (str(file.relative_to(folder)), each.name)
        for each in classes
        for file in sorted(each.rglob("*"))
        if file.suffix.lower() in SUFFIXES
    ]
    empty = [each.name for each in classes if not any(label == each.name for _, label in rows)]
    if not rows or empty:
        what = f"{folder.absolute() / empty[0]} has" if empty else f"{folder.absolute()} has folders with"
        raise UsageError(f"params.{field}: {what} no pictures ({', '.join(SUFFIXES)}); there is a folder of pictures for each class")
    return rows
