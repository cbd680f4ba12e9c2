# Sourced. quietly COMMAND...: the output is shown only when it fails.
quietly() {
    local log r=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || r=$?
    if [ $r -ne 0 ]; then
        echo "weir: failed: $*" >&2
        tail -60 "$log" >&2
    fi
    rm -f "$log"
    return $r
}
