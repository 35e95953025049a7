# Checkpoints on the frozen panel, apart from the trainer. evaluated.json is the output, not evals.parquet, so that a
# killed evaluation loses no finished checkpoint.


rule evaluate:
    input:
        f"{RUNS}/status.json",
    output:
        f"{RUNS}/evaluated.json",
    log:
        f"{RESULTS}/logs/evaluate/{{setting}}.{{env}}.{{method}}.seed{{seed}}.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        run=above(0),
    shell:
        "python -m divopd.cli evaluate {params.run:q} --progress lines 2>&1 | tee {log:q}"
