"""The examples of docs/how-to/cluster.md are what bash, YAML, torchrun and `start` take."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from esper_overwatch.trainer.cli.start import start
from esper_overwatch.trainer.config.load import load as configured

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md"
NODES = {"$SLURM_NNODES": "2", "$head:29400": "node1:29400"}


def block(language: str) -> str:
    """The page's only fenced block of this language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (found,) = (text for name, text in blocks if name == language)
    return str(found)


def manifests() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(block("yaml"))}


def words_of(script: str) -> list[str]:
    """What follows `torchrun` in a script."""
    (line,) = (line for line in script.replace("\\\n", " ").splitlines() if "torchrun" in line)
    words = shlex.split(line)
    return [NODES.get(word, word) for word in words[words.index("torchrun") + 1 :]]


def commands() -> list[list[str]]:
    (container,) = manifests()["Job"]["spec"]["template"]["spec"]["containers"]
    return [words_of(block("")), words_of(block("bash")), container["command"][1:]]


@pytest.mark.parametrize("which", [0, 1, 2], ids=["by hand", "slurm", "kubernetes"])
def test_torchrun_and_start_take_the_options(which: int) -> None:
    torchrun = get_args_parser().parse_args(commands()[which])
    assert torchrun.rdzv_backend == "c10d"
    assert torchrun.rdzv_endpoint.endswith(":29400")
    assert torchrun.rdzv_id
    assert (torchrun.nnodes, torchrun.nproc_per_node, torchrun.no_python) == ("2", "4", True)
    verb, *rest = torchrun.training_script_args
    assert (torchrun.training_script, verb) == ("esper-daemon", "start")
    given = start.make_context("start", list(rest)).params
    assert (given["name"], given["or_resume"]) == ("big", True)
    config = configured(sets=given["sets"])
    assert config.envs.count % 8 == 0
    assert config.checkpoint.every_seconds == 60


def test_slurm_script_is_valid_bash() -> None:
    script = block("bash")
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    first, *lines = script.splitlines()
    assert first == "#!/bin/bash"
    directives = [line for line in lines if line.startswith("#SBATCH ")]
    assert lines[: len(directives)] == directives, "SLURM reads none behind the first command"


def test_pods_are_found_under_the_name_of_the_service() -> None:
    service, job = manifests()["Service"], manifests()["Job"]
    name, pods = service["metadata"]["name"], job["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pods["subdomain"] == name
    assert job["spec"]["completionMode"] == "Indexed"
    (container,) = pods["containers"]
    assert f"--rdzv-endpoint={job['metadata']['name']}-0.{name}:29400" in container["command"]
    assert f"--nnodes={job['spec']['completions']}" in container["command"]
    volumes = {volume["name"] for volume in pods["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
