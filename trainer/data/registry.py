"""Datasets by name: those that are made here, the well-known ones, what the user has registered, and what
installed packages offer by an entry point of the group `esper.tasks`: a callable `() -> Dataset | Text`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from esper_overwatch.trainer import plugins
from esper_overwatch.trainer.config.task_options import TaskConfig
from esper_overwatch.trainer.plugins import PluginError

from . import checksums
from .dataset import DataError, Dataset, split_off_validation
from .digits import digits
from .formats import FORMATS, NPZ_FORMAT, TEXT_FORMAT, detect, text_file
from .generated import GENERATED_TASKS
from .mixture import Instances, Mixture
from .reduced import REDUCED_DATASETS, reduce_images
from .registrations import DatasetContents, Registration, registrations, save
from .synthetic import synthetic
from .task import Kind, Task
from .text import DEFAULT_CONTEXT, DEFAULT_TEXT_FILE, Text, TextOptions, read_text


@dataclass(frozen=True)
class KnownDataset:
    """A well-known dataset."""

    format: str
    classes: int
    train: int
    """Images in the training files."""
    test: int
    """Images in the test files."""
    folder: Path | None = None
    """Folder in which a package of the system puts it."""
    package: str = ""
    md5: Mapping[str, str] = field(default_factory=dict)
    """MD5 sums of its files' content, by their names."""


BUILT_IN_DATASETS: dict[str, Callable[[], Dataset]] = {
    "digits": digits,
    "synthetic": synthetic,
    **{name: partial(make, 0) for name, make in GENERATED_TASKS.items()},
}
KNOWN_DATASETS = {
    "mnist": KnownDataset("idx", 10, 60_000, 10_000, md5=checksums.MNIST),
    "fashion-mnist": KnownDataset(
        "idx",
        10,
        60_000,
        10_000,
        Path("/usr/share/datasets/fashion-mnist"),
        "dataset-fashion-mnist",
        checksums.FASHION_MNIST,
    ),
    "cifar10": KnownDataset("cifar10", 10, 50_000, 10_000, md5=checksums.CIFAR10),
    "cifar100": KnownDataset("cifar100", 100, 50_000, 10_000, md5=checksums.CIFAR100),
}


def load(
    name: str,
    device: torch.device | str = "cpu",
    *,
    folder: str = "",
    context: int = DEFAULT_CONTEXT,
    text: TextOptions = TextOptions(),  # noqa: B008
) -> Task:
    """Read, check and move a dataset to `device`.

    Args:
        folder: where its files are; "": where it is registered, or where its package puts it.
        context: of a text.
        text: what its tokens are.

    Raises:
        DataError: no such dataset, or its files are missing or damaged.
        FolderError: the tokens of a text cannot be written.
        PluginError: a package offers it and it cannot be used.
    """
    data = _found(name, folder, text)
    return (data.with_context(context) if isinstance(data, Text) else data).to(device)


def kind_of(name: str) -> Kind | None:
    """Kind of a dataset's examples, without reading it; None where only a package knows.

    Raises:
        DataError: a registration cannot be read.
    """
    known = registrations()
    if name == TEXT_FORMAT or (name in known and known[name].format == TEXT_FORMAT):
        return "text"
    return "images" if name in (*BUILT_IN_DATASETS, *KNOWN_DATASETS, *REDUCED_DATASETS, *known) else None


def load_task(config: TaskConfig, device: torch.device) -> Task:
    """Load what a run learns to a rank's device; raises as `load` does."""
    if config.mixture:
        return load_mixture(config.mixture, config.instances).to(device)
    return load(
        config.dataset,
        device,
        folder=config.data_dir,
        context=config.context,
        text=TextOptions(config.tokens, config.vocabulary),
    )


def load_mixture(
    names: Sequence[str], instances: int, first: int = 0, kind: type[Mixture] = Mixture
) -> Mixture:
    """Load tasks that envs draw from; raises as `load` does.

    Args:
        names: of the tasks.
        instances: of each task that a seed makes.
        first: seed of the first instance.
        kind: how envs draw.
    """
    return kind.of([_instances(name, range(first, first + instances)) for name in names])


def _instances(name: str, seeds: range) -> Instances:
    """A task of a mixture: an instance of each seed, or one where it is not made from a seed."""
    plugin = plugins.find(plugins.TASK_GROUP, name)
    if plugin is not None and _takes_seed(plugin[0]):
        found = [_made_by_package(name, "", partial(plugin[0], seed=seed), plugin[1]) for seed in seeds]
    elif plugin is None and name in GENERATED_TASKS:
        found = [GENERATED_TASKS[name](seed) for seed in seeds]
    elif plugin is None and name in REDUCED_DATASETS:
        source = _source_of(name)
        found = [reduce_images(name, source, seed) for seed in seeds]
    else:
        found = [_found(name, "", TextOptions())]
    images = tuple(data for data in found if isinstance(data, Dataset))
    if len(images) < len(found):
        raise DataError(f"task.mixture: {name} is text; a mixture is of images")
    return Instances(name, images)


def _source_of(name: str) -> Dataset:
    """The dataset that a reduced one is made of."""
    source = _found(REDUCED_DATASETS[name], "", TextOptions())
    assert isinstance(source, Dataset)
    return source


def _takes_seed(make: Callable[..., object]) -> bool:
    """True if a package's task is made from a seed, given by keyword."""
    try:
        found = inspect.signature(make).parameters.get("seed")
    except (TypeError, ValueError):  # some callables in C do not tell
        return False
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


def _found(name: str, folder: str, text: TextOptions) -> Dataset | Text:
    plugin = plugins.find(plugins.TASK_GROUP, name)
    if plugin is not None:
        made = _made_by_package(name, folder, *plugin)
        if isinstance(made, Text) and text.tokens != made.tokens:
            raise DataError(
                f"task.tokens = {text.tokens}: a package makes the tokens of {name}; leave it out"
            )
        return made
    if name == TEXT_FORMAT:
        path = text_file(_absolute_path(folder)) if folder else DEFAULT_TEXT_FILE
        return read_text(name, path, options=text)
    if name in BUILT_IN_DATASETS:
        if folder:
            raise DataError(f"task.data_dir = {folder}: {name} has no files; leave task.data_dir empty")
        return BUILT_IN_DATASETS[name]()
    if name in REDUCED_DATASETS:
        if folder:
            source = REDUCED_DATASETS[name]
            raise DataError(
                f"task.data_dir = {folder}: {name} is made of {source}; name its folder once by "
                f"`esper-daemon data {source} --from FOLDER`"
            )
        return reduce_images(name, _source_of(name))
    where = _absolute_path(folder) if folder else None
    known = registrations()
    if name in known:
        return _registered(name, known[name], where, text)
    if name not in KNOWN_DATASETS:
        there = ", ".join(
            dict.fromkeys(
                [
                    *BUILT_IN_DATASETS,
                    TEXT_FORMAT,
                    *KNOWN_DATASETS,
                    *REDUCED_DATASETS,
                    *known,
                    *plugins.list_names(plugins.TASK_GROUP),
                ]
            )
        )
        raise DataError(
            f"no dataset named {name!r}; there are {there}; "
            "`esper-daemon data NAME --from PATH` registers a text or a folder as one more"
        )
    return _read(name, KNOWN_DATASETS[name].format, where or _default_folder(name))


def _made_by_package(name: str, folder: str, make: Callable[..., object], what: str) -> Dataset | Text:
    if name in (*BUILT_IN_DATASETS, TEXT_FORMAT, *KNOWN_DATASETS, *REDUCED_DATASETS, *registrations()):
        raise PluginError(f"{what}: there is a dataset {name} already; rename it or uninstall its package")
    if folder:
        raise DataError(f"task.data_dir = {folder}: {name} has no files; leave task.data_dir empty")
    try:
        data = make()
        if isinstance(data, Dataset):
            return Dataset.of(name, data.classes, data.train, data.val, data.test)
    except Exception as error:
        raise PluginError(f"{what}: cannot be made: {plugins.one_line(error)}") from error
    if not isinstance(data, Text):
        raise PluginError(f"{what}: returns {type(data).__name__}, not a trainer.data Dataset or Text")
    return replace(data, name=name)


def register(name: str, folder: Path) -> Registration:
    """Check the files in a folder and register them as `name`.

    Raises:
        DataError: the name is not free, or the files are missing or damaged.
        FolderError: `$ESPER_HOME` cannot be written.
    """
    folder = folder.expanduser().absolute()
    if name in REDUCED_DATASETS:
        raise DataError(f"{name} is made of {REDUCED_DATASETS[name]}; register the folder under that name")
    if name in BUILT_IN_DATASETS or name == TEXT_FORMAT:
        raise DataError(f"{name} comes with the package; choose another name")
    form = detect(folder)
    if name in KNOWN_DATASETS and KNOWN_DATASETS[name].format != form:
        raise DataError(
            f"{folder}: holds {form} files, and {name} is {KNOWN_DATASETS[name].format}; choose another name"
        )
    registration = Registration(form, str(folder), DatasetContents.of(_read(name, form, folder)))
    save(name, registration)
    return registration


@dataclass(frozen=True)
class DatasetListing:
    """A line of the list of datasets."""

    name: str
    format: str
    folder: str | None
    """None where there is none, or it is not known."""
    ready: bool
    """Its folder is there, or it needs none."""
    holds: DatasetContents | None
    """None where it has not been read yet."""


def list_datasets() -> list[DatasetListing]:
    """All datasets that have a name; nothing is read but registrations."""
    rows = {
        name: DatasetListing(name, "built in", None, True, None) for name in (*BUILT_IN_DATASETS, TEXT_FORMAT)
    }
    for name, published in KNOWN_DATASETS.items():
        here = published.folder is not None and published.folder.is_dir()
        rows[name] = DatasetListing(
            name, published.format, str(published.folder) if here else None, here, None
        )
    for name in plugins.list_names(plugins.TASK_GROUP):
        rows[name] = DatasetListing(name, "package", None, True, None)
    for name, known in registrations().items():
        rows[name] = DatasetListing(
            name, known.format, known.folder, Path(known.folder).exists(), known.holds
        )
    for name, source in REDUCED_DATASETS.items():
        rows[name] = DatasetListing(name, "reduced", rows[source].folder, rows[source].ready, None)
    return list(rows.values())


def _absolute_path(folder: str) -> Path:
    path = Path(folder).expanduser()
    if not path.is_absolute():
        raise DataError(f"task.data_dir = {folder}: give the complete path, from / or ~")
    return path


def _default_folder(name: str) -> Path:
    """Folder in which a package of the system has put a published dataset."""
    published = KNOWN_DATASETS[name]
    if published.folder is not None and published.folder.is_dir():
        return published.folder
    package = f"install the package {published.package}, or " if published.package else ""
    raise DataError(
        f"{name}: its files are not here; {package}name their folder by task.data_dir "
        f"or once by `esper-daemon data {name} --from FOLDER`"
    )


def _registered(name: str, known: Registration, folder: Path | None, text: TextOptions) -> Dataset | Text:
    folder = folder or Path(known.folder)
    if known.format not in (*FORMATS, TEXT_FORMAT):
        raise DataError(
            f"{name}: is registered as {known.format!r}, which is not a format; register it again"
        )
    data = _read(name, known.format, folder, known.holds.classes, text)
    if (now := DatasetContents.of(data)) != known.holds:
        raise DataError(
            f"{folder}: holds {now}; {name} was registered with {known.holds}; "
            f"if that is right: esper-daemon data {name} --from {folder}"
        )
    return data


def _read(
    name: str,
    form: str,
    folder: Path,
    classes: int | None = None,
    text: TextOptions = TextOptions(),  # noqa: B008
) -> Dataset | Text:
    if form == TEXT_FORMAT:
        return read_text(name, text_file(folder), options=text)
    if form != NPZ_FORMAT and not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder, and {name} is to be read from it; name the one that has it"
        )
    published = KNOWN_DATASETS.get(name)
    files = FORMATS[form].read(folder, published.classes if published else classes)
    if published and (len(files.train), len(files.test)) != (published.train, published.test):
        raise DataError(
            f"{folder}: {len(files.train)} training and {len(files.test)} test images; {name} has "
            f"{published.train} and {published.test}; get the files again, or register a part by another name"
        )
    if published:
        checksums.verify(name, FORMATS[form].published(folder), published.md5)
    return Dataset.of(name, files.classes, *split_off_validation(files.train), files.test)
