#!/bin/sh
# Installs into a virtual environment without pip, in versions that constraints.txt pins; runs inside image builds.
#   sh install.sh VENV EXTRA...                 the project's dependencies and those of the extras
#   sh install.sh VENV --only EXTRA|PACKAGE...  the extras and packages alone
#   sh install.sh VENV --no-deps PACKAGE...     the packages without what they ask for
# Wheels that lie beside it are all that is used; without any, pip fetches.
set -eu
venv=$1
shift
offline=
if ls ./*.whl >/dev/null 2>&1; then offline="--no-index --find-links ."; fi
into() { python3 -m pip --python "$venv/bin/python" install --no-compile $offline --constraint constraints.txt "$@"; }
if [ "${1:-}" = --no-deps ]; then
    into "$@"
else
    python3 requirements.py "$@" > requirements.txt
    into --requirement requirements.txt
    # What makes the project's own wheel; it stays in this stage.
    python3 -m pip install --quiet $offline --constraint constraints.txt hatchling
fi
