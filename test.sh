#!/usr/bin/env bash
# ./test.sh         installs what is missing, builds, and runs every test
# ./test.sh fast    only the fast suite (C++ tests without the label "slow")
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$ROOT/tools/setup.sh"
cd "$ROOT"

install_packages build test
configure -DONEBIT_TESTS=ON
ninja -C build
ctest --test-dir build --output-on-failure --label-exclude slow
[[ ${1:-} == fast ]] && exit

[[ -x build/venv/bin/python ]] || python3 -m venv build/venv
build/venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
PYTHONDONTWRITEBYTECODE=1 build/venv/bin/python -m pytest -q tests
ctest --test-dir build --output-on-failure --label-regex slow --no-tests=ignore
