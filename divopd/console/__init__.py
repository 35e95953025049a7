"""`divopd run`: Snakemake as a child process, what a person sees of it, and how it is stopped and started again."""
