# Gradient audits: `snakemake ... audits` looks at each setting's first DivOPD run, at a quarter and at three quarters of
# its updates. Not a part of `all`: a run is made again up to there, on the machine that made it.


rule audit:
    input:
        f"{RUNS}/status.json",
    output:
        multiext(
            f"{RESULTS}/audit/{{setting}}.{{env}}.{{method}}.seed{{seed}}/u{{at}}/audit",
            ".csv",
            ".md",
            ".png",
            ".pdf",
        ),
    log:
        f"{RESULTS}/logs/audit/{{setting}}.{{env}}.{{method}}.seed{{seed}}.u{{at}}.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        run=lambda wildcards: RUNS.format(**{key: wildcards[key] for key in ("setting", "env", "method", "seed")}),
        out=above(0),
    shell:
        "python -m divopd.cli audit {params.run:q} --update {wildcards.at:q} --out {params.out:q}"
        " --progress lines 2>&1 | tee {log:q}"


AUDITED = {cell.setting: cell for cell in reversed(CELLS.values()) if cell.method.rule == "divopd"}


rule audits:
    input:
        [
            f"{RESULTS}/audit/{c.setting}.{c.env.name}.{c.method.name}.seed{c.seed}/u{update}/audit.md"
            for c in AUDITED.values()
            for update in (c.train.updates // 4, 3 * c.train.updates // 4)
        ],
