#!/bin/sh
# Print a Python 3.11 or 3.12 that runs. PYTHON=... overrides the search. One line on stderr if there is none, or no g++.
set -u

# asks the interpreter itself: a version manager's shim can be on PATH and still fail
good() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1
}

if ! command -v "${CXX:-g++}" >/dev/null 2>&1; then
    echo "error: no C++ compiler (g++); the ALFWorld planner is built from source: install g++ (Debian: apt-get install g++)" >&2
    exit 1
fi
found=
for candidate in ${PYTHON:-python3.12 python3.11 python3 python}; do
    if good "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
    version=$("$candidate" -c 'import platform; print(platform.python_version())' 2>/dev/null) || version="does not run"
    command -v "$candidate" >/dev/null 2>&1 && found="${found:+$found, }$candidate ($version)"
done
echo "error: DivOPD needs Python 3.11 or 3.12 with venv; found: ${found:-none}; install one or name it: make PYTHON=/path/to/python3.12" >&2
exit 1
