#!/bin/sh
# Load from programs that are not ours, checked for errors: wrk, h2load, ab. run_load.sh SERVER [SECONDS]
# It fails on any error or status that is not 2xx; figures are printed and not judged.
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

# run NAME PATTERN-OF-FAILURE PATTERN-THAT-MUST-BE-THERE COMMAND...
run() {
    name=$1 bad=$2 good=$3
    shift 3
    command -v "$1" >/dev/null || { echo "skipped, there is no $1: $name"; return; }
    ran=$((ran + 1))
    timeout $((seconds * 3 + 30)) "$@" >"$folder/out" 2>&1 || complain "$name: exit code $?"
    grep -Eq "$bad" "$folder/out" && complain "$name: $(grep -E "$bad" "$folder/out" | head -1)"
    grep -Eq "$good" "$folder/out" || complain "$name: no line like '$good'"
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

for connections in 64 256 512; do
    run "wrk, $connections connections" 'Socket errors|Non-2xx' '^Requests/sec: +[1-9]' \
        wrk -t 2 -c $connections -d "$seconds" "$url/json"
    run "wrk, $connections connections, 16 deep" 'Socket errors|Non-2xx' '^Requests/sec: +[1-9]' \
        wrk -t 2 -c $connections -d "$seconds" -s "$folder/pipeline.lua" "$url"
done
run "h2load, HTTP/1.1" '[1-9][0-9]* (failed|errored|timeout)|[1-9][0-9]* [345]xx' '^status codes: [1-9][0-9]* 2xx' \
    h2load --h1 -c 64 -n $((seconds * 10000)) "$url/plaintext"
run "h2load, HTTP/1.1, 16 deep" '[1-9][0-9]* (failed|errored|timeout)|[1-9][0-9]* [345]xx' \
    '^status codes: [1-9][0-9]* 2xx' h2load --h1 -c 16 -m 16 -n $((seconds * 10000)) "$url/plaintext"
run "ab, a connection each" 'Non-2xx|^Failed requests: +[1-9]' "^Complete requests: +$((seconds * 2000))\$" \
    ab -q -n $((seconds * 2000)) -c 10 "$url/plaintext"
run "ab, keep-alive" 'Non-2xx|^Failed requests: +[1-9]' "^Keep-Alive requests: +$((seconds * 2000))\$" \
    ab -q -k -n $((seconds * 2000)) -c 10 "$url/plaintext"

kill -TERM "$pid"
wait "$pid" || complain "the server's exit code is $?"
pid=
grep -Ev "listening|back end|try|ending" "$folder/server" && complain "the server had something to say"
[ $ran -gt 0 ] || exit 77
exit $failed
