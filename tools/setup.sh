# Sourced by 1bit.sh and test.sh: installs what is missing and builds. Expects ROOT, the folder of the checkout.

# install_packages KIND...: the packages of tools/packages.txt of these kinds that are not there yet.
install_packages() {
  local kinds=" $* " missing=() kind name
  while read -r kind name; do
    [[ $kinds == *" $kind "* ]] || continue
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done < <(grep -v '^#' "$ROOT/tools/packages.txt")
  ((${#missing[@]})) || return 0
  if ! command -v apt-get >/dev/null; then
    echo "No apt-get here; install what these Debian packages hold: ${missing[*]}" >&2
    return 1
  fi
  local as_root=()
  if ((EUID != 0)); then as_root=(sudo); fi
  echo "Installing ${missing[*]}" >&2
  "${as_root[@]}" apt-get update -qq >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# configure [CMAKE ARGUMENTS]: build/ as a Release build, unless it is one already.
configure() {
  cmake -S "$ROOT" -B "$ROOT/build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" >&2
}
