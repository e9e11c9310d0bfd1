# Sourced by ./run and ./test: installs what is missing and builds. Needs bash and a Debian 12 machine.
#
# The packages' versions are those of Debian 12 ("bookworm"), which fixes them; they are named in packages.txt.

deepinfer_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# say TEXT: a line of progress on stderr.
say() { printf '%s\n' "deepinfer: $*" >&2; }

# need_packages GROUP...: installs the packages of these groups of packages.txt that are not there yet.
need_packages() {
  local groups=" $* " group package missing=()
  while read -r group package; do
    [[ $group == \#* || -z $group || $groups != *" $group "* ]] && continue
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -q '^installed$' || missing+=("$package")
  done <"$deepinfer_root/tools/setup/packages.txt"
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    say "these packages are missing; install them as root with:"
    printf '  apt-get update && apt-get install -y --no-install-recommends %s\n' "${missing[*]}" >&2
    return 1
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { DEBIAN_FRONTEND=noninteractive apt-get update && \
         DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "could not install the packages; the whole log is in $log"
    return 1
  fi
  rm -f "$log"
}

# build TARGET with_tests|without_tests: an incremental release build in build/release. Without tests it needs no test
# library; once configured with tests it stays so. Quiet unless it fails; on a terminal one line shows how far it is.
build() {
  local folder=$deepinfer_root/build/release target=$1 tests=OFF log
  [[ $2 == with_tests ]] && tests=ON
  mkdir -p "$folder"
  export CCACHE_NOHASHDIR=1  # objects do not depend on the folder: the Python package takes them from the cache
  log=$folder/build.log
  [[ -f $folder/build.ninja ]] || say "building for the first time, which takes some minutes"
  if [[ ! -f $folder/build.ninja ]] || { [[ $tests == ON ]] && ! grep -q '^DEEPINFER_TESTS:BOOL=ON' "$folder/CMakeCache.txt"; }; then
    if ! cmake -S "$deepinfer_root" -B "$folder" -G Ninja -DDEEPINFER_TESTS=$tests >"$log" 2>&1; then
      tail -n 30 "$log" >&2
      say "the configuration failed; the whole log is in $log"
      return 1
    fi
  fi
  if [[ -t 2 ]]; then
    NINJA_STATUS='[%f/%t] ' ninja -C "$folder" "$target" 2>&1 | tee "$log" | \
      while IFS= read -r line; do [[ $line == \[* ]] && printf '\rdeepinfer: building %-12s' "${line%% *}" >&2; done
    local status=${PIPESTATUS[0]}
    printf '\r\033[K' >&2
  else
    ninja -C "$folder" "$target" >"$log" 2>&1
    local status=$?
  fi
  if ((status != 0)); then
    grep -E -A 12 'error|FAILED' "$log" | head -n 60 >&2
    say "the build failed; the whole log is in $log"
    return 1
  fi
}
