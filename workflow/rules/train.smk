# One job a cell. Only status.json is an output: Snakemake removes a failed job's outputs, and a killed run goes on from
# the rest of its folder. The rule's own file is an input, so that editing it reruns its cells and no others.


rule train:
    input:
        train_inputs,
        # must be there, however new: games do not change, their list does
        games=ancient(f"{RESULTS}/games.txt"),
    output:
        f"{RUNS}/status.json",
    log:
        f"{RESULTS}/logs/train/{{setting}}.{{env}}.{{method}}.seed{{seed}}.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        # the resolved cell: editing the suite reruns the cells whose configuration it changes
        config=lambda wildcards: config_hash(cell_of(wildcards)),
    shell:
        'python -m divopd.cli train --suite "$DIVOPD_SUITE" --setting {wildcards.setting:q}'
        " --method {wildcards.method:q} --seed {wildcards.seed:q} --out results --replace --progress lines 2>&1"
        " | tee {log:q}"
