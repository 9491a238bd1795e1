#!/usr/bin/env bash
# What a server's HTTP layer costs: chats of one token through wrk, whole and streamed, and its health path.
#
#   bench/peers/run_http.sh NAME URL MODEL HEALTH_PATH [SECONDS]
#
# One row each: name, request, connections, requests a second, latency p50 and p99, answers that were not 2xx. wrk takes
# one thread; server and client share the machine. A run without an answer of 200 beforehand is refused.
set -euo pipefail
name=$1 url=$2 model=$3 health=$4 seconds=${5:-5}
chat=$url/v1/chat/completions
script=$(mktemp --suffix .lua)
trap 'rm -f "$script"' EXIT

body() {
  printf '{"model":"%s","messages":[{"role":"user","content":"Say one word."}],"max_tokens":1,"temperature":0,"stream":%s}' "$model" "$1"
}
measure() {  # LABEL CONNECTIONS URL
  wrk -t1 -c"$2" -d"${seconds}s" --latency -s "$script" "$3" | awk -v name="$name" -v label="$1" -v c="$2" '
    $1 == "50%" { p50 = $2 } $1 == "99%" { p99 = $2 } /Requests\/sec/ { rate = $2 } /Non-2xx/ { bad = $NF }
    END { printf "%-12s %-8s %3d  %9.1f /s  p50 %9s  p99 %9s  bad %d\n", name, label, c, rate, p50, p99, bad }'
}

for stream in false true; do
  curl -sf -o /dev/null -H 'Content-Type: application/json' -d "$(body $stream)" "$chat" || { echo "$name does not answer a chat" >&2; exit 1; }
done
for connections in 1 16; do
  : >"$script"
  measure health "$connections" "$url$health"
  for stream in false true; do
    printf 'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = [[%s]]\n' "$(body $stream)" >"$script"
    if [ $stream = true ]; then label=streamed; else label=whole; fi
    measure $label "$connections" "$chat"
  done
done
