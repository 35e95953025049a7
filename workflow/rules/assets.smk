# Games compiled once for all cells, on all cores: two cells of one seed would else translate the same games side by side.
# Nothing but the absence of its output makes it run: Snakemake does not look for what is missing below a job that runs
# for another reason, and `ancient` then keeps new cells from being trained in that call. They compile what they lack.


rule games:
    output:
        f"{RESULTS}/games.txt",
    log:
        f"{RESULTS}/logs/games.log",
    conda:
        "../../environment.yml"
    threads: workflow.cores
    shell:
        'python -m divopd.cli prepare --suite "$DIVOPD_SUITE" --workers {threads} --progress lines 2>&1 | tee {log:q}'
        " && tail -n 1 {log:q} > {output:q}"
