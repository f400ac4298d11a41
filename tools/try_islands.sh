#!/usr/bin/env bash
# Trains on islands that are network namespaces of this machine, each with an address of its own on one switch and started by itself. The
# last one may come later, be killed or be unplugged, and comes again, and links may be cut for a while; in the end all must have the same
# model, bit by bit, or held-out losses that are close where each island ends with a model of its own. Needs root and iproute2.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cairn=${CAIRN:-$root/cairn}
machines=3 rate='' delay='' break='' for='' folder='' own_models='' agents=()
place=10.77.0.1:29400 net=cairn$$ # what the namespaces are called: net-switch, net-0, net-1, ...

usage() {
  cat <<'TEXT'
usage: tools/try_islands.sh [--islands N] [--rate R] [--delay D] [--break HOW] [--for SECONDS] [CAIRN ARGUMENTS...]
  --islands N    how many islands, at 10.77.0.1, 10.77.0.2, ... (default 3)
  --rate R       what each island sends at most, as tc says it: 100mbit
  --delay D      added to what each island sends: 50ms (where the kernel has no netem: use --links of cairn train)
  --break HOW    what happens after 40 steps
                   late     the last island is started only then
                   kill     the last island is killed (kill -9) and started again
                   first    the same with island 0
                   unplug   the cable of the last island is out for good
                   halves   the lower and the upper half do not reach each other for a while
                   link     the last two islands do not reach each other for a while
                   zero     island 0 and the last one do not reach each other for a while
                   stop     the last island is stopped (SIGSTOP) for a while
  --for SECONDS  how long that while is (default 25)
  --own-models   each island ends with a model of its own (sync.island.final = "one" or "none"): held-out losses must lie within 10 %
  CAIRN ARGUMENTS  of `cairn train` (default: a small streaming DiLoCo of 200 steps)
  CAIRN=FILE in the environment is the program to try (default: ./cairn)
example: tools/try_islands.sh --islands 4 --rate 100mbit --break kill
TEXT
}

# shellcheck source=tools/namespaces.sh
source "$root/tools/namespaces.sh"

start_island() {
  local at=$1 again=${2:-}
  setsid ip netns exec "$net-$at" "$cairn" train "${arguments[@]}" --islands "$machines" --island "$at" --founders "$founders" \
    --meet "$place" --key "$folder/run.key" --listen "10.77.0.$((at + 1)):$((at == 0 ? 29400 : 29500))" \
    --out "$folder/island$at$again" >"$folder/island$at$again.log" 2>&1 &
  agents[at]=$!
}

# Waits until island 0 has taken so many steps.
wait_for_steps() {
  until [[ -s $folder/island0/metrics.jsonl ]] && (($(wc -l <"$folder/island0/metrics.jsonl") >= $1)); do
    runs "${agents[0]}" || {
      cat "$folder/island0.log" >&2
      stop "island 0 ended before step $1"
    }
    pause
  done
}

# Two islands do not reach each other: each sends to an address that nobody has. Nothing tells them so.
cut_link() {
  ip -n "$net-$1" neighbour replace "10.77.0.$(($2 + 1))" lladdr 02:00:00:00:00:00 dev eth0 nud permanent
  ip -n "$net-$2" neighbour replace "10.77.0.$(($1 + 1))" lladdr 02:00:00:00:00:00 dev eth0 nud permanent
}
mend_link() {
  ip -n "$net-$1" neighbour delete "10.77.0.$(($2 + 1))" dev eth0
  ip -n "$net-$2" neighbour delete "10.77.0.$(($1 + 1))" dev eth0
}
# Calls $1 with each pair of islands of which one is in the lower half and one in the upper.
between_halves() {
  local a b
  for ((a = 0; a < machines / 2; ++a)); do
    for ((b = machines / 2; b < machines; ++b)); do "$1" "$a" "$b"; done
  done
}
for_a_while() {
  local until=$((SECONDS + ${for:-25}))
  while ((SECONDS < until)); do pause; done
}
# Kills an island and starts it again.
kill_island() {
  say break "kill -9 of island $1"
  kill -9 "${agents[$1]}"
  { wait "${agents[$1]}" || true; } 2>/dev/null
  start_island "$1" -again
  final[$1]=$folder/island$1-again
}

arguments=()
while (($#)); do
  case $1 in
    --islands) machines=$(number "$1" "${2:-}" 64) && shift 2 ;;
    --rate) rate=${2:?--rate needs a value} && shift 2 ;;
    --delay) delay=${2:?--delay needs a value} && shift 2 ;;
    --break)
      break=${2:-}
      [[ $break =~ ^(late|kill|first|unplug|halves|link|zero|stop)$ ]] || stop "--break = $break: --help lists what there is"
      shift 2
      ;;
    --for) for=$(number "$1" "${2:-}" 999) && shift 2 ;;
    --own-models) own_models=1 && shift ;;
    --help | -h)
      usage
      exit 0
      ;;
    *) arguments+=("$1") && shift ;;
  esac
done
((machines >= 2)) || stop "--islands = $machines: must be at least 2"
if ((${#arguments[@]} == 0)); then
  arguments=(--sync streaming_diloco --set train.steps=200 --set sync.island.every=12 --set sync.island.fragment_layers=2 --set sync.island.delay=2
    --set eval.every=100 --set log.samples=0 --set "train.global_batch=$((2 * machines))")
fi
((EUID == 0)) || stop "network namespaces need root"
folder=$(mktemp -d)
trap clean EXIT
trap 'exit 130' INT TERM
make_network
"$cairn" key "$folder/run.key" >/dev/null
last=$((machines - 1))
founders=$machines
if [[ $break == late ]]; then founders=$last; fi
for ((at = 0; at < founders; ++at)); do start_island "$at"; done
final=()
for ((at = 0; at < machines; ++at)); do final[at]=$folder/island$at; done
if [[ -n $break ]]; then wait_for_steps 40; fi
case $break in
  late)
    say late "island $last is started"
    start_island "$last"
    ;;
  kill) kill_island "$last" ;;
  first) kill_island 0 ;;
  halves)
    say break "the two halves are cut for ${for:-25} s"
    between_halves cut_link
    for_a_while
    between_halves mend_link
    ;;
  link | zero)
    other=$((last - 1))
    if [[ $break == zero ]]; then other=0; fi
    say break "the link between islands $other and $last is cut for ${for:-25} s"
    cut_link "$other" "$last"
    for_a_while
    mend_link "$other" "$last"
    ;;
  stop)
    say break "SIGSTOP of island $last for ${for:-25} s"
    kill -STOP -- "-${agents[last]}"
    for_a_while
    kill -CONT -- "-${agents[last]}"
    ;;
  unplug)
    say break "ip link set port$last down: island $last is unplugged"
    ip -n "$net-switch" link set "port$last" down
    unset 'final[last]'
    ;;
esac
wrong=0
for at in "${!final[@]}"; do
  wait "${agents[at]}" || {
    wrong=1
    tail -n 20 "${final[at]}.log" >&2
  }
done
((wrong == 0)) || stop "an island failed"
sums=() losses=()
for at in "${!final[@]}"; do
  model=$(find "${final[at]}/snapshots" -name 'model*.safetensors' | sort | tail -n 1)
  [[ -n $model ]] || stop "island $at left no model"
  sums+=("$(sha256sum <"$model")")
  loss=$(grep -oE '"eval_loss":[0-9.]+' "${final[at]}/metrics.jsonl" | tail -n 1 | cut -d: -f2)
  losses+=("${loss:-nan}")
  rounds=$(grep -cE '"(islands":([2-9]|1[0-9])|partner":[0-9])' "${final[at]}/metrics.jsonl" || true)
  say "island $at" "$rounds rounds with others, held-out loss ${loss:-not measured}"
done
models=$(printf '%s\n' "${sums[@]}" | sort -u | wc -l)
if [[ -n $own_models ]]; then
  printf '%s\n' "${losses[@]}" | awk '{ if (NR == 1 || $1 < least) least = $1; if ($1 > most) most = $1; if ($1 !~ /^[0-9]/) bad = 1 }
    END { exit bad || most > 1.1 * least }' || stop "the held-out losses of the islands differ by more than 10 %: ${losses[*]}"
  say result "$models models, held-out losses within 10 % of each other"
else
  [[ $models == 1 ]] || stop "the islands have different models (with a model for each island: --own-models)"
  say result "the same model on all islands, bit by bit"
fi
