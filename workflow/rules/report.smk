# Run logs -> CSVs -> tables and figures -> one page. Only the suite's own cells enter; tables and figures read the CSVs
# alone.


# sweeps are suites of their own
SWEEP_CSVS = [f"results/sweep-{name}/sweep.csv" for name in ("load", "cap", "staleness", "access")]


rule collect:
    input:
        [f"{run}/evaluated.json" for run in CELLS],
    output:
        csvs("curves", "summary", "diagnostics", "speedups", "timings", "depth", "disagreement"),
    log:
        f"{RESULTS}/logs/collect.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        results=above(0),
        baseline=config.get("baseline", "vanilla"),
    shell:
        'python -m divopd.cli report {params.results:q} --stage collect --suite "$DIVOPD_SUITE"'
        " --baseline {params.baseline:q} 2>&1 | tee {log:q}"


# Tables of controls and sweeps are made where their runs are there; left_out.md names the others and what they need.
rule tables:
    input:
        csvs("summary", "diagnostics", "timings"),
        sweeps=[path for path in SWEEP_CSVS if Path(path).exists()],
    output:
        multiext(f"{RESULTS}/tables/main", ".md", ".tex", ".csv"),
        multiext(f"{RESULTS}/tables/aggregate", ".md", ".tex", ".csv"),
        multiext(f"{RESULTS}/tables/full", ".md", ".tex", ".csv"),
        multiext(f"{RESULTS}/tables/speedups", ".md", ".tex", ".csv"),
        multiext(f"{RESULTS}/tables/scores", ".md", ".tex", ".csv"),
        multiext(f"{RESULTS}/tables/diagnostics", ".md", ".tex", ".csv"),
        multiext(f"{RESULTS}/tables/utilisation", ".md", ".tex", ".csv"),
        multiext(f"{RESULTS}/tables/teacher_tokens", ".md", ".tex", ".csv"),
        f"{RESULTS}/tables/left_out.md",
    log:
        f"{RESULTS}/logs/tables.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        results=above(1),
    shell:
        "python -m divopd.cli report {params.results:q} --stage tables 2>&1 | tee {log:q}"


# So are figures; these are the ones that every suite has.
rule figures:
    input:
        csvs("curves", "summary", "diagnostics", "speedups", "depth", "disagreement"),
    output:
        multiext(f"{FIGURES}/learning_curves", ".png", ".pdf"),
        multiext(f"{FIGURES}/batch_diagnostics", ".png", ".pdf"),
        multiext(f"{FIGURES}/speedup_by_target", ".png", ".pdf"),
        f"{FIGURES}/left_out.md",
    log:
        f"{RESULTS}/logs/figures.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        results=lambda wildcards, input: Path(input[0]).parent.as_posix(),
        figures=above(0),
    shell:
        "python -m divopd.cli report {params.results:q} --stage figures --figures {params.figures:q} 2>&1 | tee {log:q}"


rule page:
    input:
        csvs("summary", "timings"),
        rules.tables.output,
        rules.figures.output,
    output:
        f"{RESULTS}/report.md",
    log:
        f"{RESULTS}/logs/page.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        results=above(0),
        figures=lambda wildcards, input: Path(input[-1]).parent.as_posix(),
    shell:
        "python -m divopd.cli report {params.results:q} --stage page --figures {params.figures:q} 2>&1 | tee {log:q}"


# One file for a browser; it shows runs as well, which the CSVs do not hold.
rule html:
    input:
        csvs("curves", "summary", "timings"),
        rules.tables.output,
        [f"{run}/evaluated.json" for run in CELLS],
    output:
        report(
            f"{RESULTS}/report.html",
            caption="../report/html.rst",
            category="Report",
        ),
    log:
        f"{RESULTS}/logs/html.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        results=above(0),
    shell:
        "python -m divopd.cli report {params.results:q} --stage html 2>&1 | tee {log:q}"
