# What the rules share: the cells of the suite, and where things lie.
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir).parent))

from divopd import suite
from divopd.provenance import config_hash, rule_path
from divopd.templates import template_path

# `python` in a job is the one that runs Snakemake, whose folder need not be on PATH; one thread a job
PATH = os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
os.environ.update(PATH=PATH, OMP_NUM_THREADS="1")

if not workflow.configfiles:
    raise WorkflowError("no suite: add --configfile experiments/demo.yaml")
SUITE_FILE = Path(os.path.relpath(workflow.configfiles[0]))
try:
    CELLS = {cell.run_dir().as_posix(): cell for cell in suite.expand(config, SUITE_FILE)}
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


def csvs(*names):
    return [f"{RESULTS}/{name}.csv" for name in names]


def above(level):
    """A parameter: the folder `level` steps above the rule's first output."""
    return lambda wildcards, output: Path(output[0]).parents[level].as_posix()
