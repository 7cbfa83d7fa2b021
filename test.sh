#!/usr/bin/env bash
# ./test.sh         installs what is missing, builds, and runs every test: C++, then Python
# ./test.sh fast    only the C++ tests without the label "slow"
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$ROOT/tools/setup.sh"
cd "$ROOT"

if [[ ${1:-fast} != fast ]]; then
  sed -n '2,3s/^# //p' "$0" >&2
  exit 2
fi
install_packages build test
configure -DONEBIT_TESTS=ON
ninja -C build
if [[ ${1:-} == fast ]]; then
  exec ctest --test-dir build --output-on-failure --label-exclude slow --parallel "$(nproc)"
fi
ctest --test-dir build --output-on-failure

[[ -x build/venv/bin/python ]] || python3 -m venv build/venv
pip=(build/venv/bin/python -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" -r tests/requirements.txt
"${pip[@]}" --no-deps -r tests/models/requirements.txt
export PYTHONDONTWRITEBYTECODE=1
build/venv/bin/python -m pytest -p no:cacheprovider -q tests
