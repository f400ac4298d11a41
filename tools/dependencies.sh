# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # root, preset, jobs, torch belong to ./cairn
# Finds or installs what deps/debian.txt, deps/torch.txt and deps/gpu.txt name. Read by ./cairn, only when a build folder is configured.
# Uses its root, say, stop, since and has_gpu.

# What apt-get or pip prints is shown only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    rm -f "$log"
    return 0
  fi
  tail -n 20 "$log" >&2
  rm -f "$log"
  return 1
}

# Prints "package shown-by need" for each line of deps/debian.txt whose command, header or module is not there.
list_missing() {
  local package shown need headers='' includes=() folder
  if [[ -n ${CAIRN_DEPS:-} ]]; then includes=(-isystem "$CAIRN_DEPS/include" -isystem "$CAIRN_DEPS/usr/include"); fi
  while read -r package shown need; do
    case $shown in
      command:*) command -v "${shown#*:}" >/dev/null || echo "$package $shown $need" ;;
      module:*) python3 -c "import ${shown#*:}" 2>/dev/null || echo "$package $shown $need" ;;
      header:*) headers+="#if !__has_include(<${shown#*:}>)"$'\n'"@ $package $shown $need"$'\n#endif\n' ;;
    esac
  done < <(grep -v '^#' "$root/deps/debian.txt")
  if command -v g++ >/dev/null; then # one run of the compiler answers for all headers, wherever it finds them
    g++ -std=c++20 -E -P -x c++ "${includes[@]}" - <<<"$headers" | sed -n 's/^@ //p'
  else
    while read -r _ package shown need; do
      for folder in "${CAIRN_DEPS:-/usr}/include" "${CAIRN_DEPS:-}/usr/include" /usr/local/include /usr/include; do
        if [[ -e $folder/${shown#*:} ]]; then continue 2; fi
      done
      echo "$package $shown $need"
    done < <(grep '^@' <<<"$headers")
  fi
}

# Prints the command that may install packages without asking, or fails.
installer() {
  if [[ -n ${CAIRN_NO_INSTALL:-} ]] || ! command -v apt-get >/dev/null; then return 1; fi
  if [[ $(id -u) == 0 ]]; then
    echo "env DEBIAN_FRONTEND=noninteractive apt-get"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    echo "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get"
  else
    return 1
  fi
}

# The sentence that ends the script: each missing thing, why it was not installed, and the command that gets it.
refuse_packages() {
  local missing=$1 why package shown need names=()
  if [[ -n ${CAIRN_NO_INSTALL:-} ]]; then
    why="CAIRN_NO_INSTALL is set"
  elif ! command -v apt-get >/dev/null; then
    why="this machine has no apt-get"
  elif [[ $(id -u) != 0 ]]; then
    why="this user is not root and sudo asks for a password"
  else
    why="apt-get could not install it (above)"
  fi
  say missing "needed to build, and not installed because $why:"
  while read -r package shown need; do
    if [[ $need != extra ]]; then
      printf '         %-22s %s %s\n' "$package" "${shown%%:*}" "${shown#*:}" >&2
      names+=("$package")
    fi
  done <<<"$missing"
  stop "get it with:  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${names[*]}" \
    "(Debian's names; elsewhere the packages that hold those files), or unpack it into a folder and set CAIRN_DEPS=FOLDER"
}

# True if a line of $1 is needed now: to build, or (no libtorch at hand) to download the wheel.
blocks() {
  grep -q ' build$' <<<"$1" || { ! has_torch && grep -q ' wheel$' <<<"$1"; }
}

ensure_packages() {
  local missing apt names extras started=$EPOCHREALTIME
  missing=$(list_missing)
  if [[ -z $missing ]]; then return; fi
  if has_torch; then missing=$(grep -v ' wheel$' <<<"$missing" || true); fi
  if [[ -z $missing ]]; then return; fi
  if ! apt=$(installer); then
    if blocks "$missing"; then refuse_packages "$missing"; fi
    return 0 # only extras are missing: the build is slower without them, that is all
  fi
  mapfile -t names < <(grep -v ' extra$' <<<"$missing" | cut -d' ' -f1)
  mapfile -t extras < <(grep ' extra$' <<<"$missing" | cut -d' ' -f1)
  say packages "installing ${names[*]} ${extras[*]}"
  # shellcheck disable=SC2086  # the installer is several words
  if ! $apt install -y --no-install-recommends "${names[@]}" "${extras[@]}" >/dev/null 2>&1; then
    quietly $apt update || true
    if ((${#names[@]})); then quietly $apt install -y --no-install-recommends "${names[@]}" || true; fi
    if ((${#extras[@]})); then $apt install -y --no-install-recommends "${extras[@]}" >/dev/null 2>&1 || true; fi
  fi
  hash -r
  missing=$(list_missing)
  if [[ -n $missing ]] && blocks "$missing"; then refuse_packages "$missing"; fi
  say packages "installed ($(since "$started"))"
}

cache_folder() { echo "${CAIRN_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/cairn}"; }

torch_version() { sed -n 's/^torch==//p' "$root/deps/torch.txt"; }
torch_cache() {
  local suffix=
  if [[ ${1:-} == cuda ]] && has_gpu; then suffix=-gpu; fi
  echo "$(cache_folder)/torch-$(torch_version)-$(uname -m)$suffix"
}

# Prints the torch package folder at or under $1: the folder itself, a site-packages that holds it, or a virtual environment.
torch_folder_in() {
  local folder
  for folder in "$1" "$1"/torch "$1"/lib/python3*/site-packages/torch; do
    if [[ -e $folder/lib/libtorch_cpu.so ]]; then
      readlink -f "$folder"
      return
    fi
  done
  return 1
}

has_torch() { [[ -n ${CAIRN_TORCH:-} ]] || torch_folder_in "$(torch_cache)" >/dev/null; }

# Sets torch to the package folder of libtorch: CAIRN_TORCH, the cache, or a fresh install into the cache. A GPU needs the
# wheel with all its dependencies; without one the wheel and two small libraries do.
ensure_torch() {
  local cache
  if [[ -n ${CAIRN_TORCH:-} ]]; then
    torch=$(torch_folder_in "$CAIRN_TORCH") ||
      stop "CAIRN_TORCH=$CAIRN_TORCH: holds no libtorch (lib/libtorch_cpu.so); give the torch folder of an installed wheel, or unset it to install torch $(torch_version)"
    return
  fi
  cache=$(torch_cache "$1")
  if ! torch=$(torch_folder_in "$cache"); then
    install_torch "$cache"
    torch=$(torch_folder_in "$cache") || stop "$cache: the installed wheel has no lib/libtorch_cpu.so; delete the folder and run again"
  fi
}

# Installs into a folder beside and renames it, so that no other checkout ever sees half of it; one at a time.
install_torch() {
  local cache=$1 wheel lock partial what started=$EPOCHREALTIME
  wheel=(--no-deps -r "$root/deps/torch.txt")
  what="torch $(torch_version) (about 500 MB to download)"
  if [[ $cache == *-gpu ]]; then
    wheel=("torch==$(torch_version)")
    what="torch $(torch_version) with its CUDA libraries (about 3 GB to download)"
  fi
  if [[ -n ${CAIRN_NO_INSTALL:-} ]]; then refuse_torch "CAIRN_NO_INSTALL is set" "$cache" "${wheel[@]}"; fi
  python3 -m pip --version >/dev/null 2>&1 || refuse_torch "python3 has no pip (Debian: sudo apt-get install -y python3-pip)" "$cache" "${wheel[@]}"
  mkdir -p "$(dirname "$cache")" || stop "the cache $(dirname "$cache") cannot be written: set CAIRN_CACHE=FOLDER"
  exec {lock}>"$cache.lock"
  if ! flock -n "$lock"; then
    say wait "another ./cairn installs libtorch"
    flock "$lock"
  fi
  if [[ -d $cache ]]; then return; fi
  rm -rf "$cache".partial.* # left by a killed install; nobody else can be at it while we hold the lock
  partial=$(mktemp -d "$cache.partial.XXXXXX")
  say libtorch "installing $what into $cache"
  local bar=(--progress-bar off -q)
  if [[ -t 2 ]]; then bar=(-q --progress-bar on); fi
  if ! PIP_ROOT_USER_ACTION=ignore python3 -m pip install "${bar[@]}" --disable-pip-version-check --no-compile --target "$partial" "${wheel[@]}" >&2; then
    rm -rf "$partial"
    refuse_torch "pip could not fetch it (above)" "$cache" "${wheel[@]}"
  fi
  chmod 755 "$partial"
  mv -T "$partial" "$cache"
  exec {lock}>&-
  say libtorch "installed ($(since "$started"))"
}

refuse_torch() {
  local why=$1 cache=$2
  stop "missing: libtorch $(torch_version), and not installed because $why" \
    "get it with:  python3 -m pip install --target $cache ${*:3}" \
    "or set CAIRN_TORCH=FOLDER to the torch folder of a wheel that is installed (same version)"
}

are_cudnn_headers() {
  [[ -e $1/cudnn_frontend_version.h ]] &&
    g++ -E -x c++ -I "$1" - <<<$'#include <cudnn_frontend_version.h>\n#if CUDNN_FRONTEND_VERSION < 11800\n#error too old\n#endif' >/dev/null 2>&1
}

# Sets cudnn_headers to the folder of what deps/gpu.txt names, in the cache; to nothing where it is somewhere else or is not had, which
# costs nothing but speed.
ensure_cudnn_headers() {
  local version cache folder
  cudnn_headers=
  for folder in "${CAIRN_DEPS:-}/include" "${CAIRN_DEPS:-}/usr/include" "${torch%/*}/include"; do
    if are_cudnn_headers "$folder"; then return; fi # CMake looks there by itself
  done
  version=$(sed -n 's/^nvidia-cudnn-frontend==//p' "$root/deps/gpu.txt")
  cache=$(cache_folder)/cudnn-frontend-$version
  if [[ ! -d $cache ]] && has_gpu && ! install_cudnn_headers "$cache"; then
    say cudnn "has no headers here: attention to packed documents goes to FlashAttention-2, which takes longer (again: rm build/cuda/.cairn)"
  fi
  if [[ -d $cache ]]; then cudnn_headers=$(readlink -f "$cache"); fi
}

# Fails, and leaves nothing behind, where it cannot be.
install_cudnn_headers() {
  local cache=$1 lock partial
  if [[ -n ${CAIRN_NO_INSTALL:-} ]] || ! mkdir -p "$(dirname "$cache")" || [[ ! -w $(dirname "$cache") ]]; then return 1; fi
  if ! { exec {lock}>"$cache.lock"; } 2>/dev/null || ! flock "$lock"; then return 1; fi
  rm -rf "$cache".partial.*
  if [[ ! -d $cache ]] && partial=$(mktemp -d "$cache.partial.XXXXXX"); then
    say cudnn "installing its headers into $cache"
    # They are the same for every Python: one that has a wheel, whichever runs here.
    if PIP_ROOT_USER_ACTION=ignore quietly python3 -m pip install --disable-pip-version-check --no-compile --no-deps \
      --only-binary :all: --python-version 3.12 --target "$partial" -r "$root/deps/gpu.txt"; then
      mv -T "$partial/include" "$cache" || true
    fi
    rm -rf "$partial"
  fi
  exec {lock}>&-
  [[ -d $cache ]]
}
