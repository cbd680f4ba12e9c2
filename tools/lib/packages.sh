# Sourced. packages PURPOSE...: installs what is missing of the packages for build, test, ci; says so first.
# Anything but Debian and its descendants has to bring the packages itself.

packages_for() {
    case $1 in
    build) echo gcc libc6-dev cmake ninja-build pkg-config libck-dev ;;
    test) echo libcriterion-dev liburing-dev python3 binutils g++ ;; # without liburing: epoll alone
    ci) echo clang clang-tidy valgrind curl spin strace wrk apache2-utils nghttp2-client iproute2 ;;
    *) echo "packages.sh: no purpose is called $1" >&2; return 1 ;;
    esac
}

packages_missing() {
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
    done
}

packages() {
    local purpose wanted='' missing as_root=''
    for purpose in "$@"; do
        wanted="$wanted $(packages_for "$purpose")" || return 1
    done
    if ! command -v apt-get >/dev/null; then
        echo "weir: no apt-get here; the build needs what Debian calls:$wanted" >&2
        return 0
    fi
    # shellcheck disable=SC2086
    missing=$(packages_missing $wanted | xargs)
    [ -z "$missing" ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null || { ! sudo -n true 2>/dev/null && ! [ -t 0 ]; }; then
            echo "weir: these packages are missing and only root can install them: $missing" >&2
            echo "weir: run as root, or first: apt-get install $missing" >&2
            return 1
        fi
        as_root=sudo
    fi
    echo "weir: installing $missing" >&2
    packages_install "$as_root" "$missing" && return 0
    echo "weir: could not install $missing" >&2
    return 1
}

# The lists of packages are brought up to date only when what they say does not work.
packages_install() {
    local as_root=$1 log
    log=$(mktemp)
    # shellcheck disable=SC2086
    set -- $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
        --no-install-recommends install $2
    if "$@" >"$log" 2>&1 </dev/null ||
        { $as_root apt-get -qq -o DPkg::Lock::Timeout=300 update >>"$log" 2>&1 && "$@" >>"$log" 2>&1 </dev/null; }; then
        rm -f "$log"
        return 0
    fi
    tail -20 "$log" >&2
    rm -f "$log"
    return 1
}
