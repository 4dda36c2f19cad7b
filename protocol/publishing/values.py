"""Values that may be logged, and their names: numbers, arrays, texts, files, pictures, tables."""

from __future__ import annotations

import hashlib
import logging
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from esper_overwatch.protocol.errors import PublishError, first_line

from .device_reader import is_on_device
from .pictures import is_picture, take_picture
from .tables import TableSample, is_table, take_table

logger = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 128
MAX_DEPTH = 8
"""Groups in a name, and nested dicts in a value."""
MAX_STEP = 2**63 - 1
MAX_TEXT_CHARACTERS = 65_536
MAX_ARRAY_VALUES = 16_384
"""Values sampled from a larger array, evenly spaced."""
Note = Callable[[str, object], None]
"""Takes the name of what was left out or changed, and why."""
_DIGEST_CHARACTERS = 8
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".bmp", ".tif", ".tiff"})


class ArraySample(NamedTuple):
    """Values of an array, copied when it was logged."""

    values: Any
    """A list, or an array whose `tolist` gives one."""
    size: int
    """Number of elements of the whole array."""


class SortedValues(NamedTuple):
    """Arguments of one `log`, by kind; nested dicts are flat, their keys joined by `/`."""

    numbers: dict[str, Any]
    """May still be tensors of a device: `as_number` waits for them."""
    arrays: dict[str, ArraySample]
    texts: dict[str, str]
    files: dict[str, tuple[Path, int]]
    """Absolute path and size."""
    pictures: dict[str, Any]
    """Images of Pillow."""
    tables: dict[str, TableSample]


def check_value_name(name: object) -> str:
    """The name, where it can be that of a value.

    Raises:
        PublishError: it cannot.
    """
    if (
        isinstance(name, str)
        and 0 < len(name) <= MAX_NAME_CHARACTERS
        and name.isprintable()
        and all(part and part == part.strip() for part in name.split("/"))
        and name.count("/") <= MAX_DEPTH
    ):
        return name
    raise PublishError(
        f"{name!r:.160} is not a name for a value: up to {MAX_NAME_CHARACTERS} printable characters, "
        f"groups divided by single '/', such as 'env/3/loss'"
    )


def fit_value_name(name: object) -> str:
    """The name as it can be that of a value: text, no empty groups, not too long; mostly as it was."""
    text = "".join(c if c.isprintable() else "_" for c in (name if isinstance(name, str) else str(name)))
    parts = [part.strip() for part in text.split("/")]
    parts = [part for part in parts if part] or ["_"]
    fitted = "/".join([*parts[:MAX_DEPTH], ".".join(parts[MAX_DEPTH:])]).rstrip("/")
    if len(fitted) > MAX_NAME_CHARACTERS:  # two long names stay two
        digest = hashlib.blake2b(fitted.encode(errors="replace")).hexdigest()[:_DIGEST_CHARACTERS]
        fitted = f"{fitted[: MAX_NAME_CHARACTERS - _DIGEST_CHARACTERS - 1].rstrip(' /')}~{digest}"
    return fitted


def check_step(step: object) -> int:
    """The step as an int.

    Raises:
        PublishError: it is not a whole number from 0 to `MAX_STEP`.
    """
    try:
        number = operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(step, bool) or not 0 <= number <= MAX_STEP:
        raise PublishError(f"step = {step!r:.80}: must be a whole number from 0 to {MAX_STEP}")
    return number


def fit_step(step: Any, newest: int, note: Note) -> int:
    """The step as an int: a number is rounded down, anything else becomes the step after the newest."""
    try:
        return check_step(step)
    except PublishError as error:
        try:
            number = float(step.detach() if hasattr(step, "detach") else step)
        except Exception:  # of the value's own code
            logger.debug("the step cannot be read as a number", exc_info=True)
            number = math.nan
        is_within = 0 <= number < MAX_STEP
        fitted = int(number) if is_within else min(max(newest, -1) + 1, MAX_STEP)
        if not (is_within and number == fitted):
            note("step", f"{error}; it is {fitted} here")
        return fitted


def sort_values(values: Mapping[Any, object], note: Note | None = None) -> SortedValues:
    """Sort by kind, and copy what the loop may change later. One element is a number, whatever its shape.

    Args:
        note: is told of what cannot be logged, which is left out, and of names that were made fit; None =
            that is an error.

    Raises:
        PublishError: without `note`, a name or a value cannot be logged; nothing of `values` is then logged.
    """
    found = SortedValues({}, {}, {}, {}, {}, {})
    _sort_into(found, values, "", 0, note)
    return found


def _sort_into(
    found: SortedValues, values: Mapping[Any, object], prefix: str, depth: int, note: Note | None
) -> None:
    if depth > MAX_DEPTH:
        raise PublishError(f"{prefix[:80]}: dicts are nested more than {MAX_DEPTH} deep")
    for key, value in values.items():
        name = prefix
        try:
            name = _name_of(key, prefix, note)
            if isinstance(value, Mapping):
                _sort_into(found, value, f"{name}/", depth + 1, note)
            elif isinstance(value, str):
                found.texts[name] = _check_text(name, value)
            elif isinstance(value, Path):
                found.files[name] = check_file(name, value)[:2]
            elif (number := _only_number(value)) is not None:
                found.numbers[name] = _take_number(name, number)
            elif is_picture(value):
                found.pictures[name] = take_picture(name, value)
            elif is_table(value):
                found.tables[name] = take_table(name, value)
            else:
                found.arrays[name] = _take_sample(name, value)
        except PublishError as error:
            if note is None:
                raise
            note(name, error)
        except Exception as error:  # of the value's own code
            refusal = f"{name}: a value of type {type(value).__name__} cannot be read: {first_line(error)}"
            if note is None:
                raise PublishError(refusal) from error
            note(name, refusal)


def _name_of(key: object, prefix: str, note: Note | None) -> str:
    if prefix and isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    try:
        return check_value_name(prefix + key if isinstance(key, str) else key)
    except PublishError as error:
        if note is None:
            raise
        name = fit_value_name(f"{prefix}{key}")
        note(name, f"{error}; it is {name!r} here")
        return name


def _only_number(value: Any) -> Any:
    """The number that a value is or that it has as its only element; None where it has none, or several."""
    shape = getattr(value, "shape", None)
    if isinstance(value, Real) or shape == ():
        return value
    if isinstance(shape, tuple) and hasattr(value, "reshape"):
        return value.reshape(()) if math.prod(shape) == 1 else None
    if isinstance(value, list | tuple) and len(value) == 1:
        return _only_number(value[0])
    return None


def _check_text(name: str, text: str) -> str:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise PublishError(
            f"{name} = a text of {len(text)} characters: may have {MAX_TEXT_CHARACTERS}; "
            "write it to a file and log its pathlib.Path"
        )
    return text


def _take_number(name: str, value: Any) -> Any:
    """A number, or a copy of a tensor on a device, for which the I/O thread waits instead of the loop."""
    if isinstance(value, Real):
        return value
    if hasattr(value, "detach"):
        value = value.detach()
    if is_on_device(value) and hasattr(value, "clone"):
        return value.clone()
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, Real):
        raise _refusal(name, value)
    return number


def as_number(value: Any) -> int | float:
    """A logged number as JSON has it: an int of 64 bits, or a float.

    Raises:
        Exception: a device's tensor cannot be read.
    """
    if not isinstance(value, Real):
        value = value.item()
    if isinstance(value, int) or hasattr(value, "__index__"):
        number = int(value)
        if -MAX_STEP <= number <= MAX_STEP:
            return number
        value = number
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _take_sample(name: str, value: Any) -> ArraySample:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and hasattr(value, "reshape") and hasattr(value, "tolist"):
        return _sample_array(name, value, math.prod(shape))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        size = _count(value, 0)
        flat: list[int | float] = []
        _flatten(name, value, flat, _stride(size), 0, 0)
        return ArraySample(flat, size)
    raise _refusal(name, value)


def _sample_array(name: str, array: Any, size: int) -> ArraySample:
    """An even sample of a numpy array, a tensor or the like, copied."""
    kind = getattr(array.dtype, "kind", None)  # numpy's: a letter
    if (kind is not None and kind not in "biufV") or "complex" in str(array.dtype):
        raise PublishError(f"{name} = an array of {array.dtype}: must be of numbers")
    if hasattr(array, "detach"):
        array = array.detach()
    flat = array.reshape(-1)[:: _stride(size)]
    return ArraySample(flat.clone() if hasattr(flat, "clone") else flat.copy(), size)


def _stride(size: int) -> int:
    return max(1, math.ceil(size / MAX_ARRAY_VALUES))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _count(values: Sequence[Any], depth: int) -> int:
    """Numbers in nested lists, whose elements are alike: a look at every number would hold the loop."""
    if values and _is_list(values[0]) and depth < MAX_DEPTH:
        return sum(_count(part, depth + 1) if _is_list(part) else 1 for part in values)
    return len(values)


def _flatten(
    name: str, values: Sequence[Any], flat: list[int | float], stride: int, passed: int, depth: int
) -> int:
    """Sample every `stride`-th number.

    Args:
        passed: numbers that came before these.

    Returns:
        Numbers that came before what follows.
    """
    is_nested = bool(values) and _is_list(values[0])
    for value in values if is_nested else values[-passed % stride :: stride]:
        if isinstance(value, Real):
            flat.append(float(value) if not isinstance(value, int) else as_number(value))
        elif _is_list(value) and depth < MAX_DEPTH:
            passed = _flatten(name, value, flat, stride, passed, depth + 1)
        elif getattr(value, "shape", None) == ():
            flat.append(as_number(_take_number(name, value)))
        else:
            raise _refusal(name, value)
    return passed if is_nested else passed + len(values)


def _refusal(name: str, value: object) -> PublishError:
    return PublishError(
        f"{name}: a value of type {type(value).__name__} cannot be logged; "
        "log numbers, arrays or lists of numbers, text, an image of Pillow, a table as a list of dicts, "
        "dicts of these, or a file as pathlib.Path"
    )


def check_file(name: str, path: Path, *, digest: bool = False) -> tuple[Path, int, str | None]:
    """Absolute path and size of a file, and where it is asked for its BLAKE2b digest.

    Raises:
        PublishError: there is none, or it cannot be read.
    """
    try:
        status = path.stat()
        if not path.is_file():
            raise PublishError(f"{name} = {path}: is not a file")
        return path.absolute(), status.st_size, _digest(name, path) if digest else None
    except (OSError, ValueError) as error:
        if isinstance(error, PublishError):
            raise
        raise PublishError(f"{name} = {path}: {getattr(error, 'strerror', None) or error}") from None


def _digest(name: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32))
    except OSError as error:
        raise PublishError(f"{name} = {path}: cannot be read: {error.strerror}") from None
    return f"blake2b:{digest.hexdigest()}"


def kind_of(path: Path) -> str:
    """Kind of a file by its suffix: `image` or `file`."""
    return "image" if path.suffix.lower() in IMAGE_SUFFIXES else "file"
