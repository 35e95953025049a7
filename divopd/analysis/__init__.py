"""From run logs to CSVs, tables and figures. Nothing here trains, evaluates or changes a log."""

import os
import sys
from contextlib import suppress

# Jupyter's shells export a MPLBACKEND that other environments lack, and matplotlib cannot be imported then, although
# nothing here uses a backend. What of it is valid stays as it was, for a notebook that imports this.
if (_backend := os.environ.get("MPLBACKEND")) and "matplotlib" not in sys.modules:
    del os.environ["MPLBACKEND"]
    import matplotlib

    os.environ["MPLBACKEND"] = _backend
    with suppress(ValueError):
        matplotlib.rcParams["backend"] = _backend
