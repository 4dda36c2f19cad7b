"""Blueprints and tasks of installed packages: found by real entry points, run, refused by their name."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.compute.convolutions import GROUPED
from esper_overwatch.trainer.config.task_options import TaskConfig
from esper_overwatch.trainer.data.mixture import Mixture
from esper_overwatch.trainer.data.registry import list_datasets, load, load_task
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.plugins import PluginError
from esper_overwatch.trainer.seeds.image_blueprints import Blueprint, BlueprintError, verify
from esper_overwatch.trainer.seeds.plugin_blueprints import module_blueprint
from esper_overwatch.trainer.seeds.registry import blueprint
from tests.trainer.hosts.plots import config, plant, tiny
from tests.trainer.packages import POINTWISE, install

torch.set_num_threads(1)

FAULTY = """
import torch
from torch import nn

class Wrong(nn.Conv2d):
    def __init__(self, channels, size, **other):
        super().__init__(channels, channels, 3, **other)

class Batch(nn.Module):
    def __init__(self, channels, size):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
    def forward(self, x):
        return self.norm(x)

class Counting(nn.Conv2d):
    def __init__(self, channels, size):
        super().__init__(channels, channels, 1)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls += 1
        return super().forward(x)

class Random(nn.Conv2d):
    def __init__(self, channels, size):
        super().__init__(channels, channels, 1)
    def forward(self, x):
        return nn.functional.dropout(super().forward(x))

class Flat(nn.Conv2d):
    def __init__(self, channels, size):
        super().__init__(channels, channels, 1)
    def forward(self, x):
        return super().forward(x).flatten(1)

class Infinite(nn.Conv2d):
    def __init__(self, channels, size):
        super().__init__(channels, channels, 1)
    def forward(self, x):
        return super().forward(x) / 0.0

def by_numpy(channels, size):
    import numpy
    module = nn.Conv2d(channels, channels, 1)
    module.bias.data = torch.from_numpy(numpy.random.default_rng().random(channels)).float()
    return module

def nothing(channels, size):
    return nn.ReLU()

def number(channels, size):
    return 7

def raises(channels, size):
    raise ValueError("only even widths\\nand more")

def liar(channels, size):
    return nn.Conv2d(channels, channels, 1)

liar.identity_at_birth = True

def ahead(channels, size):
    return nn.Conv2d(channels, channels, 3, padding=1)

constant = 3
"""

TASKS = """
import torch
from esper_overwatch.trainer.data.dataset import Dataset, Split
from esper_overwatch.trainer.data.text import Text

def stripes():
    labels = torch.arange(200) % 4
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    for i, label in enumerate(labels.tolist()):
        images[i, 0, 2 * label] = 255
    split = Split(images, labels)
    return Dataset.of("anything", 4, split, split, split)

def rhyme():
    return Text.of("rhyme", "row, row, row your boat, gently down the stream. " * 40)

def wrong_labels():
    split = Split(torch.zeros(10, 1, 4, 4, dtype=torch.uint8), torch.arange(10))
    return Dataset("x", 3, (1, 4, 4), split, split, split, torch.zeros(1), torch.ones(1))

def nothing():
    return None

def raises():
    raise OSError("no network")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def put(package: str, code: str, **points: dict[str, str]) -> None:
        install(site, package, code, **points)

    return put


def test_a_third_partys_blueprint_grows_in_both_families(installed: Callable[..., None]) -> None:
    installed("good_seeds", POINTWISE, esper_blueprints={"pointwise": "pointwise"})
    for family in ("cnn", "transformer"):
        kind = blueprint("pointwise", family).at(8, (4, 1))
        verify(kind, 8, (4, 1), causal=family == "transformer")
        assert kind.parameters(8) == 8 * 8 + 8 + 1


def test_newborns_depend_on_their_key_alone(
    installed: Callable[..., None],
) -> None:
    installed("drawing_seeds", POINTWISE, esper_blueprints={"pointwise": "pointwise"})
    kind = blueprint("pointwise", "cnn").at(8, (4, 4))
    state = torch.random.get_rng_state()
    three = kind.newborn(8, torch.tensor([5, 6, -7]), torch.float32)
    assert torch.equal(torch.random.get_rng_state(), state), "the process's generator is left alone"
    alone = kind.newborn(8, torch.tensor([6]), torch.float32)
    torch.manual_seed(6)
    reference = nn.Conv2d(8, 8, 1)
    torch.random.set_rng_state(state)
    assert torch.equal(three["point.weight"][1], alone["point.weight"][0])
    assert torch.equal(alone["point.weight"][0], reference.weight)
    assert not torch.equal(three["point.weight"][0], three["point.weight"][2])


@pytest.mark.parametrize("plan", ["gather", "masked"])
def test_a_population_trains_with_it_and_rows_are_independent(
    installed: Callable[..., None], plan: str
) -> None:
    installed("growing_seeds", POINTWISE, esper_blueprints={"pointwise": "pointwise"})
    losses = []
    for count in (4, 2):
        cfg = config(count, seeds__blueprints=["norm", "pointwise"], envs__plan=plan)
        population = Population(cfg, tiny(), "cpu", dtype=torch.float64)
        columns = {
            "stage": torch.tensor([[int(Stage.TRAINING), int(Stage.HOLDING), 0]] * count),
            "pruning": torch.zeros(count, 3, dtype=torch.bool),
            "style": torch.zeros(count, 3).long(),
            "blueprint": torch.tensor([[1, 1, -1]] * count),
            "alpha": torch.tensor([[0.0, 1.0, 0.0]] * count),
        }
        plant(population, columns)
        before = population.state_dict()["weights"]["r0c1.pointwise"]
        measurements = population.run_epoch(1, 0).measurements
        after = population.state_dict()["weights"]["r0c1.pointwise"]
        assert (before != after).any(1).all()
        assert measurements.seed_grad_norm[:, :2].isfinite().all()
        losses.append(measurements.train_loss[:2])
        population.close()
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Wrong", r"turns \(2, 8, 4, 4\) into \(2, 8, 2, 2\); a seed must keep the shape"),
        ("Batch", r"changes its buffers \(batch norm\?\)"),
        ("Counting", "changes its buffers"),
        ("Random", r"is random \(dropout\?\)"),
        ("Flat", r"returns \(2, 128\); a seed must keep the shape"),
        ("Infinite", "puts out NaN or infinity"),
        ("by_numpy", r"is born otherwise by the same key \(numpy\?\).* from torch's generator"),
        ("nothing", "has no parameters, so there is nothing to learn"),
        ("number", "makes int, not a torch.nn.Module"),
        ("raises", "cannot be made: ValueError: only even widths"),
        ("liar", "claims to be the identity at birth and is not"),
        ("constant", "is int, not callable"),
    ],
)
def test_a_faulty_blueprint_ends_with_its_name(installed: Callable[..., None], name: str, words: str) -> None:
    package = f"faulty_{name.lower()}"
    installed(package, FAULTY, esper_blueprints={"faulty": name})
    with pytest.raises((PluginError, BlueprintError), match=words) as caught:
        verify(blueprint("faulty", "cnn").at(8, (4, 4)), 8, (4, 4))
    assert f"entry point esper.blueprints: faulty = {package}:{name} of {package}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_that_looks_ahead_is_refused_in_a_text_host(installed: Callable[..., None]) -> None:
    installed("ahead_seeds", FAULTY, esper_blueprints={"ahead": "ahead"})
    kind = blueprint("ahead", "transformer").at(8, (6, 1))
    with pytest.raises(BlueprintError, match=r"ahead_seeds:ahead.*looks ahead"):
        verify(kind, 8, (6, 1), causal=True)


def test_imports_that_fail_and_names_that_clash(installed: Callable[..., None]) -> None:
    installed("broken_seeds", "import no_such_module_at_all", esper_blueprints={"broken": "x"})
    installed("clash_one", POINTWISE, esper_blueprints={"norm": "pointwise", "twice": "pointwise"})
    installed("clash_two", POINTWISE, esper_blueprints={"twice": "pointwise"})
    with pytest.raises(
        PluginError, match=r"broken = broken_seeds:x.*cannot be imported: ModuleNotFoundError"
    ):
        blueprint("broken", "cnn")
    with pytest.raises(PluginError, match=r"norm = clash_one:pointwise.*norm is built in"):
        blueprint("norm", "cnn")
    with pytest.raises(PluginError, match=r"and also entry point .*twice = clash_\w+:pointwise"):
        blueprint("twice", "cnn")
    assert blueprint("attention", "cnn").name == "attention", "what nobody names is not even imported"
    with pytest.raises(BlueprintError, match=r"'nope' .*conv_heavy, broken, norm, twice"):
        blueprint("nope", "cnn")


def test_frozen_parameters_and_constant_buffers_stay_with_the_module() -> None:
    class Masked(nn.Module):
        def __init__(self, channels: int, size: tuple[int, int]) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(channels, 1, 1))
            self.fixed = nn.Parameter(torch.full((1,), 2.0), requires_grad=False)
            self.register_buffer("mask", torch.eye(size[0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale * self.fixed * self.mask

    kind: Blueprint = module_blueprint("masked", Masked, "here").at(3, (4, 4))
    assert list(kind.specs(3)) == ["scale"]
    x = torch.ones(2, 6, 4, 4, dtype=torch.float64)
    scale = torch.tensor([1.0, 10.0]).double().view(2, 1, 1, 1).expand(2, 3, 1, 1)
    out = kind.forward(x, {"scale": scale}, GROUPED)
    assert torch.equal(out[:, :3], 2 * torch.eye(4).double().expand(2, 3, 4, 4))
    assert torch.equal(out[:, 3:], 20 * torch.eye(4).double().expand(2, 3, 4, 4))


def test_groups_on_threads_run_one_blueprint_at_once() -> None:
    met = threading.Barrier(2, timeout=60)

    class Meeting(nn.Conv2d):
        """Its runs on other threads than this one wait for each other in the middle."""

        def __init__(self, channels: int, size: tuple[int, int]) -> None:
            super().__init__(channels, channels, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is not threading.main_thread():
                met.wait()
            return super().forward(x)

    kind = module_blueprint("meeting", Meeting, "here").at(3, (4, 4))
    born = [kind.newborn(3, torch.tensor(keys), torch.float32) for keys in ([1, 2], [3, 4])]
    groups = [(torch.rand(2, 6, 4, 4), weights) for weights in born]
    alone = [kind.forward(x, weights, GROUPED) for x, weights in groups]

    def run(group: int) -> torch.Tensor:
        try:
            return kind.forward(*groups[group], GROUPED)
        except Exception:
            met.abort()
            raise

    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(run, range(2)))
    for found, expected in zip(together, alone, strict=True):
        assert torch.equal(found, expected)


def test_tasks_of_packages_are_loaded_and_listed(installed: Callable[..., None]) -> None:
    installed("good_tasks", TASKS, esper_tasks={"stripes": "stripes", "rhyme": "rhyme"})
    images, text = load("stripes"), load("rhyme", context=16)
    assert (images.name, images.kind, images.shape) == ("stripes", "images", (1, 8, 8))
    assert (text.name, text.kind, text.shape) == ("rhyme", "text", (1, 16, 1))
    assert {"stripes", "rhyme"} <= {entry.name for entry in list_datasets() if entry.ready}


def test_the_package_of_the_page_works(installed: Callable[..., None]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8")
    project = tomllib.loads(_block(page, "# pyproject.toml"))["project"]
    points = project["entry-points"]
    assert project["name"] == "garden"
    modules = {
        group.replace(".", "_"): {name: target.removeprefix("garden:") for name, target in names.items()}
        for group, names in points.items()
    }
    installed("garden", _block(page, "# garden.py"), **modules)
    verify(blueprint("wave", "cnn").at(8, (4, 4)), 8, (4, 4))
    mixture = load_task(TaskConfig(mixture=("bars", "digits"), instances=2), torch.device("cpu"))
    assert isinstance(mixture, Mixture)
    assert [len(task.datasets) for task in mixture.tasks] == [2, 1], "bars takes a seed"
    assert load("bars").shape == (1, 8, 8)
    text = load("rhyme")
    assert text.kind == "text"
    assert len(text.train) // text.shape[1] > TaskConfig().batch_size, "a start with the defaults is refused"


def _block(page: str, first_line: str) -> str:
    """The code on a page that begins with this line."""
    return page[page.index(f"\n{first_line}\n") :].partition("\n```")[0]


def test_a_task_that_takes_a_seed_has_instances(installed: Callable[..., None]) -> None:
    seeded = (
        TASKS
        + """

def waves(seed=0):
    labels = torch.arange(40) % 2
    images = (torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 255).to(torch.uint8)
    return Dataset.of("any", 2, *[Split(images, labels)] * 3)
"""
    )
    installed("seeded_tasks", seeded, esper_tasks={"waves": "waves", "stripes": "stripes"})
    mixture = load_task(TaskConfig(mixture=("waves", "stripes"), instances=3), torch.device("cpu"))
    assert isinstance(mixture, Mixture)
    assert [(task.name, len(task.datasets)) for task in mixture.tasks] == [("waves", 3), ("stripes", 1)]
    first, second, _ = mixture.tasks[0].datasets
    assert not torch.equal(first.train.images, second.train.images)
    assert first.name == "waves"


@pytest.mark.parametrize(
    ("parameters", "instances"),
    [("count=40, seed=0", 3), ("*, seed=0", 3), ("seed=0, /", 1), ("*seed", 1), ("**seed", 1)],
)
def test_a_task_is_given_its_seed_by_keyword(
    installed: Callable[..., None], parameters: str, instances: int
) -> None:
    waves = f"""

def waves({parameters}):
    images = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0] = seed if isinstance(seed, int) else 0
    assert locals().get("count", 40) == 40
    return Dataset.of("any", 2, *[Split(images, torch.arange(40) % 2)] * 3)
"""
    package = "keywords_" + "".join(one if one.isalnum() else "_" for one in parameters)
    installed(package, TASKS + waves, esper_tasks={"waves": "waves"})
    mixture = load_task(TaskConfig(mixture=("waves",), instances=3), torch.device("cpu"))
    assert isinstance(mixture, Mixture)
    seeds = [int(data.train.images[0].max()) for data in mixture.tasks[0].datasets]
    assert seeds == list(range(instances))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrong_labels", "cannot be made: DataError: .*labels run from 0 to 9, not within 0..2"),
        ("nothing", "returns NoneType, not a trainer.data Dataset or Text"),
        ("raises", "cannot be made: OSError: no network"),
        ("gone", "cannot be imported: AttributeError"),
    ],
)
def test_a_faulty_task_ends_with_its_name(installed: Callable[..., None], name: str, words: str) -> None:
    package = f"tasks_{name}"
    installed(package, TASKS, esper_tasks={"theirs": name})
    with pytest.raises(PluginError, match=words) as caught:
        load("theirs")
    assert f"esper.tasks: theirs = {package}:{name}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_that_takes_a_name_is_refused(installed: Callable[..., None]) -> None:
    installed("taking_tasks", TASKS, esper_tasks={"digits": "stripes", "text": "rhyme"})
    for name in ("digits", "text"):
        with pytest.raises(PluginError, match=f"there is a dataset {name} already"):
            load(name)
