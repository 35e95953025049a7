# All rules over the synthetic streams, beside the paper's numbers; no model, no run. Not part of `all`: ask for it,
#   snakemake --cores 2 replay_streams --configfile experiments/demo.yaml
STREAMS = ["alfworld", "scienceworld", "webshop"]


rule replay_streams:
    input:
        expand("results/replay/{stream}/replay.md", stream=STREAMS),


rule replay_stream:
    input:
        stream="experiments/streams/{stream}.yaml",
        rules=[str(path) for path in sorted(Path("baselines").glob("*.py"))],
    output:
        "results/replay/{stream}/replay.md",
        "results/replay/{stream}/replay.csv",
        "results/replay/{stream}/replay_depth.csv",
        "results/replay/{stream}/comparison.csv",
    log:
        "results/replay/logs/{stream}.log",
    wildcard_constraints:
        stream=one_of(STREAMS),
    conda:
        "../../environment.yml"
    threads: 1
    params:
        out=above(0),
    shell:
        "python -m divopd.cli replay --stream {input.stream:q} --out {params.out:q} 2>&1 | tee {log:q}"
