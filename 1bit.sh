#!/usr/bin/env bash
# ./1bit.sh          installs what is missing, builds, and serves the demo pair on http://127.0.0.1:8000
# ./1bit.sh build    only installs and builds; the program is build/1bit
# ./1bit.sh ARGS     the same, then runs build/1bit ARGS
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$ROOT/tools/setup.sh"

install_packages build
# An earlier build is only brought up to date, and says nothing unless that fails; the first one shows what it does.
quiet=()
if [[ -x $ROOT/build/1bit && ${1:-} != build ]]; then
  quiet=(--quiet)
else
  configure -DONEBIT_TESTS=OFF
fi
ninja -C "$ROOT/build" "${quiet[@]}" 1bit >&2

case ${1:-} in
  build) ;;
  '')
    cat <<TEXT

Serving the demo pair on http://127.0.0.1:8000 (a chat page; Ctrl-C stops). From another terminal:

  curl -N http://127.0.0.1:8000/v1/chat/completions -d '{"stream": true, "messages": [{"role": "user", "content": "What is gravity?"}]}'

TEXT
    exec "$ROOT/build/1bit" serve -m "$ROOT/models/demo-H32.gguf" --dflash "$ROOT/models/demo-dflash2.gguf"
    ;;
  *) exec "$ROOT/build/1bit" "$@" ;;
esac
