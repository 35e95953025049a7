# What the rules share: the cells of the suite, and where things lie.
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir).parent))

from divopd import merged, suite
from divopd.lookup import missing_file
from divopd.provenance import config_hash, rule_path
from divopd.templates import template_path

# `python` in a job is the one that runs Snakemake, whose folder need not be on PATH; one thread a job
PATH = os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
os.environ.update(PATH=PATH, OMP_NUM_THREADS="1")

if not workflow.configfiles:
    raise WorkflowError("no suite: add --configfile experiments/demo.yaml")
FILES = [Path(os.path.relpath(file)) for file in workflow.configfiles]
try:
    # what every job reads, as a variable of its shell and no input or parameter: a cell is trained again when its own
    # configuration changes, not when another suite file says the same
    SUITE = merged.suite_file(config, FILES)
    os.environ.update(DIVOPD_SUITE=str(SUITE))
    CELLS = {cell.run_dir().as_posix(): cell for cell in suite.load_suite(SUITE)}
    for cell in CELLS.values():
        if missing := missing_file(cell, FILES[0]):
            raise suite.SuiteError(f"{SUITE}: {missing}")
except suite.SuiteError as error:
    raise WorkflowError(str(error)) from None

RESULTS, FIGURES = f"results/{config['name']}", f"figures/{config['name']}"
RUNS = f"{RESULTS}/{{setting}}/{{env}}/{{method}}/seed{{seed}}"


def cell_of(wildcards):
    return CELLS[RUNS.format(**wildcards)]


def train_inputs(wildcards):
    """Files of the rule, weights, prompt template and panel: a log belongs to one panel, most checkpoints are gone."""
    cell = cell_of(wildcards)
    folders = [Path(policy.path) for policy in (cell.student, cell.teacher)]
    weights = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.safetensors"))]
    # relative: the same set of inputs wherever the checkout lies
    prompt = [path for path in [template_path(cell.prompt)] if path is not None]
    return [os.path.relpath(path) for path in (rule_path(cell.method.rule), cell.env.eval_panel, *prompt, *weights)]


def one_of(names):
    """A wildcard's pattern: exactly these names."""
    return "|".join(sorted(map(re.escape, set(names))))


def csvs(*names):
    return [f"{RESULTS}/{name}.csv" for name in names]


def above(level):
    """A parameter: the folder `level` steps above the rule's first output."""
    return lambda wildcards, output: Path(output[0]).parents[level].as_posix()
