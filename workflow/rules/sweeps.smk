# A suite that names what its methods differ by (`sweep: pipeline.load`) also gets a table and a figure by that quantity.
SWEEP = [f"{RESULTS}/sweep.md"] if config.get("sweep") else []


rule sweep:
    input:
        csvs("summary", "diagnostics"),
    output:
        f"{RESULTS}/sweep.md",
        f"{RESULTS}/sweep.csv",
        multiext(f"{RESULTS}/tables/sweep", ".md", ".tex"),
        multiext(f"{FIGURES}/sweep", ".png", ".pdf"),
    log:
        f"{RESULTS}/logs/sweep.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        results=above(0),
        sweep=config.get("sweep"),
        figures=lambda wildcards, output: Path(output[-1]).parent.as_posix(),
    shell:
        'python -m divopd.cli sweep {params.results:q} --suite "$DIVOPD_SUITE" --figures {params.figures:q} 2>&1'
        " | tee {log:q}"
