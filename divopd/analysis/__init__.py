"""From run logs to CSVs, tables and figures. Nothing here trains, evaluates or changes a log."""
