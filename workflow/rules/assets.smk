# Games compiled once for all cells, on all cores: two cells of one seed would else translate the same games side by side.


rule games:
    input:
        SUITE_FILE,
    output:
        f"{RESULTS}/games.txt",
    log:
        f"{RESULTS}/logs/games.log",
    conda:
        "../../environment.yml"
    threads: workflow.cores
    shell:
        "python -m divopd.cli prepare --suite {input} --workers {threads} --progress lines 2>&1 | tee {log}"
        " && tail -n 1 {log} > {output}"
