#!/bin/sh
# Load from programs that are not ours, each for so long: wrk, h2load, ab. run_load.sh SERVER [SECONDS]
# It fails on any error, on a status that is not 2xx, and when a connection that was there early on has brought no
# request more at the end (as ss tells); figures are printed and not judged.
set -u
server=$1
seconds=${2:-10}
folder=$(mktemp -d)
pid=
failed=0
ran=0

finish() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' INT TERM

complain() {
    echo "FAILED: $1"
    cat "$folder/out"
    failed=1
}

# The server's connections and how many bytes each has received: "PEER BYTES".
connections() {
    ss -tniHO state established "sport = :$port" 2>/dev/null |
        sed -n 's/^[0-9]* *[0-9]* *[^ ]* *\([^ ]*\) .*bytes_received:\([0-9]*\).*/\1 \2/p'
}

# What is left of the list in the file $1 when those that have received more since, by the file $2, are taken out.
still() {
    awk 'NR == FNR { now[$1] = $2; next } !(now[$1] > $2)' "$2" "$1"
}

# Until the command has ended. Its connections as they were when all were there become those that have not progressed;
# one that ended meanwhile stays in the list if nobody saw it progress.
watch_progress() {
    : >"$folder/stalled"
    command -v ss >/dev/null || { wait "$1"; return; }
    while [ "$seen" -lt "$lasting" ] && kill -0 "$1" 2>/dev/null; do
        sleep 0.1
        connections >"$folder/stalled"
        seen=$(wc -l <"$folder/stalled")
    done
    looks=0
    while kill -0 "$1" 2>/dev/null; do
        looks=$((looks + 1))
        connections >"$folder/now"
        still "$folder/stalled" "$folder/now" >"$folder/left"
        mv "$folder/left" "$folder/stalled"
        sleep 0.1
    done
    # All there at the very end only: nothing is known of their progress.
    [ "$looks" -ge 5 ] || : >"$folder/stalled"
    wait "$1"
}

# run NAME LASTING PATTERN-OF-FAILURE PATTERN-THAT-MUST-BE-THERE COMMAND...
# LASTING: how many connections last as long as the command, and are looked at.
run() {
    name=$1 lasting=$2 bad=$3 good=$4 seen=0
    shift 4
    command -v "$1" >/dev/null || { echo "skipped, there is no $1: $name"; return; }
    ran=$((ran + 1))
    timeout $((seconds * 3 + 30)) "$@" >"$folder/out" 2>&1 &
    watch_progress $! || complain "$name: exit code $?"
    grep -Eq "$bad" "$folder/out" && complain "$name: $(grep -E "$bad" "$folder/out" | head -1)"
    grep -Eq "$good" "$folder/out" || complain "$name: no line like '$good'"
    if [ "$lasting" -gt 0 ] && command -v ss >/dev/null; then
        [ "$seen" -ge "$lasting" ] || complain "$name: $seen connections were seen, of $lasting"
        [ -s "$folder/stalled" ] && complain "$name: $(wc -l <"$folder/stalled") of $seen connections do not progress"
    fi
    echo "$name: $(grep -E '^(Requests/sec|finished in|Requests per second)' "$folder/out" | tr -s ' ')"
}

ulimit -n 4096
: >"$folder/server"
"$server" --listen 127.0.0.1:0 >"$folder/server" 2>&1 &
pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    grep -q ": try" "$folder/server" && break
    sleep 0.1
done
port=$(sed -n 's/.*listening on .*:\([0-9]*\)$/\1/p' "$folder/server")
[ -n "$port" ] || { cat "$folder/server"; exit 1; }
url=http://127.0.0.1:$port

# wrk counts what is pipelined only when the script says so: init() makes one string of sixteen requests.
cat >"$folder/pipeline.lua" <<'LUA'
init = function(args)
    local requests = {}
    for i = 1, 16 do requests[i] = wrk.format("GET", "/plaintext") end
    batch = table.concat(requests)
end
request = function() return batch end
LUA

for count in 64 256 512; do
    run "wrk, $count connections" $count 'Socket errors|Non-2xx' '^Requests/sec: +[1-9]' \
        wrk -t 2 -c $count -d "$seconds" "$url/json"
    run "wrk, $count connections, 16 deep" $count 'Socket errors|Non-2xx' '^Requests/sec: +[1-9]' \
        wrk -t 2 -c $count -d "$seconds" -s "$folder/pipeline.lua" "$url"
done
h2load_bad='[1-9][0-9]* (failed|errored|timeout)|[1-9][0-9]* [345]xx'
run "h2load, HTTP/1.1" 64 "$h2load_bad" '^status codes: [1-9][0-9]* 2xx' \
    h2load --h1 -c 64 -D "$seconds" --warm-up-time=1 "$url/plaintext"
run "h2load, HTTP/1.1, 16 deep" 16 "$h2load_bad" '^status codes: [1-9][0-9]* 2xx' \
    h2load --h1 -c 16 -m 16 -D "$seconds" --warm-up-time=1 "$url/plaintext"
# -t first: it sets a count of its own.
run "ab, a connection each" 0 'Non-2xx|^Failed requests: +[1-9]|apr_' "^Complete requests: +[1-9]" \
    ab -q -t "$seconds" -n 100000000 -c 10 "$url/plaintext"
run "ab, keep-alive" 10 'Non-2xx|^Failed requests: +[1-9]|apr_' "^Keep-Alive requests: +[1-9]" \
    ab -q -k -t "$seconds" -n 100000000 -c 10 "$url/plaintext"

kill -TERM "$pid"
wait "$pid" || complain "the server's exit code is $?"
pid=
# A worker that the machine leaves waiting for a while is named; that is no fault here.
grep -Ev "listening|back end|try|ending|callbacks do not return" "$folder/server" &&
    complain "the server had something to say"
[ $ran -gt 0 ] || exit 77
exit $failed
