"""Pictures: copied where they are logged; a thread of their own writes them and makes their previews.

Pillow decodes, encodes and resizes. Where it is not installed nobody has a picture to log, and files of
images are published without a preview.
"""

from __future__ import annotations

import base64
import logging
import re
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from esper_overwatch.protocol.errors import PublishError
from esper_overwatch.protocol.messages.events import Artifact, ImagePreview

logger = logging.getLogger(__name__)

MAX_PIXELS = 2048 * 2048
"""Limit of a picture that is logged: the loop waits for its copy."""
MAX_FILE_PIXELS, MAX_FILE_BYTES = 16 * 1024 * 1024, 64 * 1024 * 1024
"""Limits of a file of which a preview is made: it takes four bytes a pixel for a moment."""
MAX_FOLDER_BYTES = 1024 * 1024 * 1024
"""Limit of the pictures of a run; later ones are left out."""
PREVIEW_SIZE = (80, 48)
"""Most pixels across and down: half blocks of a terminal of 80x24, about; 0.5 to 2 KB in an event."""
_LEVELS = (0, 95, 135, 175, 215, 255)
_PNG_MODES = frozenset({"1", "I", "I;16", "L", "LA", "P", "RGB", "RGBA"})


class ArrayPicture(NamedTuple):
    """An array or tensor that is a picture, as the writers of other tools are given it."""

    values: Any
    """Floats from 0 to 1, or integers from 0 to 255."""
    layout: str
    """Order of height, width and channels, such as `CHW`; `HW` has no channels."""

    def draw(self) -> Any:
        """The picture; reading a tensor waits for its device.

        Raises:
            Exception: it is none, or Pillow or numpy is not installed.
        """
        from PIL import Image

        array = self.values
        if hasattr(array, "detach"):
            array = array.detach().cpu().numpy()
        array = array.transpose([self.layout.index(axis) for axis in "HWC" if axis in self.layout])
        if array.dtype.kind == "f":
            array = array * 255
        array = array.clip(0, 255).astype("uint8")
        return Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def is_picture(value: object) -> bool:
    """Whether it is an `Image` of Pillow, which is not imported to find out, or an `ArrayPicture`."""
    pillow = sys.modules.get("PIL.Image")
    return isinstance(value, ArrayPicture) or (pillow is not None and isinstance(value, pillow.Image))


def take_picture(name: str, value: Any) -> Any:
    """A copy of a picture, as an `Image` of Pillow.

    Raises:
        PublishError: it is too large.
        Exception: it cannot be read.
    """
    is_array = isinstance(value, ArrayPicture)
    picture = value.draw() if is_array else value
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise PublishError(
            f"{name} = a picture of {width}x{height}: may have {MAX_PIXELS} pixels; "
            "write it to a file and log its pathlib.Path"
        )
    return picture if is_array else picture.copy()


class PictureFolder:
    """The pictures of a run, as PNG files; they stay with the run.

    Args:
        path: of the folder, which is made for the first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes: int | None = None

    def save(self, picture: Any, name: str, step: int, ns: int) -> Artifact:
        """Write a picture; its event.

        Args:
            picture: an `Image` of Pillow.
            name: under which it was logged.
            step: at which.
            ns: when; files of one name differ in it.

        Raises:
            PublishError: the folder is full.
            OSError: the file cannot be written.
        """
        self._path.mkdir(mode=0o700, exist_ok=True)
        if self._bytes is None:
            self._bytes = sum(file.stat().st_size for file in self._path.iterdir())
        if self._bytes >= MAX_FOLDER_BYTES:
            raise PublishError(f"{self._path} holds {self._bytes} bytes, of {MAX_FOLDER_BYTES}")
        file = self._path / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:60]}-{step}-{ns}.png"
        encodable = picture if picture.mode in _PNG_MODES else picture.convert("RGB")
        encodable.save(file, compress_level=1)
        size = file.stat().st_size
        self._bytes += size
        return Artifact(
            step=step, name=name, path=str(file), kind="image", bytes=size, preview=preview_of(picture)
        )


def preview_of_file(path: Path) -> ImagePreview | None:
    """The preview of a file; None where Pillow is not installed or cannot read it."""
    try:
        from PIL import Image

        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        with Image.open(path) as picture:
            return preview_of(picture) if picture.width * picture.height <= MAX_FILE_PIXELS else None
    except Exception:  # decoders raise what they like
        logger.debug("no preview of %s", path, exc_info=True)
        return None


def preview_of(picture: Any) -> ImagePreview:
    """A small copy on black; what of it is transparent is not seen.

    Raises:
        Exception: it cannot be read.
    """
    from PIL import Image

    width, height = picture.size
    small = picture.convert("RGBA") if picture.mode in ("1", "P") else picture.copy()
    small.thumbnail(PREVIEW_SIZE)
    ground = Image.new("RGBA", small.size, "black")
    ground.alpha_composite(small.convert("RGBA"))
    indices = ground.convert("RGB").quantize(palette=_palette(), dither=Image.Dither.NONE).tobytes()
    numbers = indices.translate(bytes([*range(16, 256), *[16] * 16]))  # the last 16 colours are black again
    pixels = base64.b64encode(zlib.compress(numbers, 9)).decode()
    return ImagePreview(width=width, height=height, columns=small.width, pixels=pixels)


@cache
def _palette() -> Any:
    """xterm's colours but for the first 16, which each terminal has as it likes."""
    from PIL import Image

    cube = [(r, g, b) for r in _LEVELS for g in _LEVELS for b in _LEVELS]
    greys = [(8 + 10 * i,) * 3 for i in range(24)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in [*cube, *greys, *[(0, 0, 0)] * 16] for part in colour])
    return palette
