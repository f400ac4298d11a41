#!/usr/bin/env bash
# Trains on several machines that are network namespaces of this one, each with an address of its own on one switch, and compares the losses
# with those of one rank. Can kill a machine, unplug its cable or give it another key, and shows what the others say. Needs root, iproute2.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cairn=${CAIRN:-$root/cairn}
machines=2 nproc=1 rate='' delay='' break='' folder='' agents=() ended=() codes=()
place=10.77.0.1:29400 net=cairn$$ # what the namespaces are called: net-switch, net-0, net-1, ...

usage() {
  cat <<'TEXT'
usage: tools/try_machines.sh [--machines N] [--nproc N] [--rate R] [--delay D] [--break HOW] [CAIRN ARGUMENTS...]
  --machines N   how many machines, 10.77.0.1, 10.77.0.2, ... (default 2)
  --nproc N      ranks on each (default 1)
  --rate R       what each machine sends at most, as tc says it: 1gbit
  --delay D      added to what each machine sends: 5ms
  --break HOW    after two steps, to the last machine: kill (kill -9 of its agent) or unplug (its link goes down);
                 or from the start: key (it has another key)
  CAIRN ARGUMENTS  of `cairn train` (default: --set train.steps=8 --set eval.every=100)
  CAIRN=FILE in the environment is the program to try (default: ./cairn)
example: tools/try_machines.sh --machines 3 --rate 1gbit --delay 5ms recipes/spirals.toml --set train.steps=50
TEXT
}

# shellcheck source=tools/namespaces.sh
source "$root/tools/namespaces.sh"

start_machine() {
  local at=$1 key=$2 out cores=()
  shift 2
  if command -v taskset >/dev/null; then cores=(taskset -c "$(cores_of "$at")"); fi
  out=$folder/machine$at.log
  : >"$out" # there before somebody looks
  # In a session of its own: Ctrl-C is for this script, which ends the machines in order.
  setsid "${cores[@]}" ip netns exec "$net-$at" "$cairn" train "$@" --nnodes "$machines" --node-rank "$at" \
    --rendezvous "$place" --key "$key" --nproc "$nproc" --out "$folder/together" >"$out" 2>&1 &
  agents[at]=$!
}

# Waits until all machines but those in $@ have ended; when, in ended, and how, in codes.
wait_for_others() {
  local at left=1
  while ((left)); do
    left=0
    for ((at = 0; at < machines; ++at)); do
      if [[ -n ${ended[at]:-} || " $* " == *" $at "* ]]; then continue; fi
      if runs "${agents[at]}"; then
        left=1
      else
        ended[at]=$(now_ms) codes[at]=0
        wait "${agents[at]}" || codes[at]=$?
      fi
    done
    if ((left)); then pause; fi
  done
}

# Machine 0's output, as it comes.
show_output() {
  tail -n +1 -f --pid="${agents[0]}" "$folder/machine0.log" &
  shown=$!
}

show_log() {
  local at=$1
  say "machine $at" "said:"
  sed "s/^/  $at| /" "$folder/machine$at.log" >&2
}

steps_of() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl"; }

compare() {
  local lines
  say alone "the same on one rank"
  if ! "$cairn" train "$@" --out "$folder/alone" >"$folder/alone.log" 2>&1; then
    tail -n 15 "$folder/alone.log" >&2
    stop "the run on one rank failed"
  fi
  lines=$(join <(steps_of "$folder/together" | sort) <(steps_of "$folder/alone" | sort))
  [[ -n $lines && $(wc -l <<<"$lines") == $(wc -l <"$folder/alone/metrics.jsonl") ]] || stop "the runs did not take the same steps"
  awk '$2 !~ /^-?[0-9]/ || $3 !~ /^-?[0-9]/ { odd = 1 }
       { d = $2 > $3 ? $2 - $3 : $3 - $2 }
       d > most { most = d; at = " in step " $1 }
       END { right = !odd && most <= 1e-5
             verdict = right ? "the same answer" : "WRONG: must be at most 1e-5"
             printf "losses    %d steps, largest difference %.3g%s: %s\n", NR, most, at, verdict
             exit !right }' <<<"$lines" >&2
}

# Waits until the run is in its third step.
wait_for_steps() {
  until [[ -s $folder/together/metrics.jsonl ]] && (($(wc -l <"$folder/together/metrics.jsonl") >= 2)); do
    runs "${agents[0]}" || stop "machine 0 ended before its second step"
    pause
  done
}

# One machine is lost; all others must end soon with exit code 4 and name one of its ranks.
lose_machine() {
  local last=$((machines - 1)) at began took wrong=0 said
  wait_for_steps
  began=$(now_ms)
  if [[ $break == kill ]]; then
    say break "kill -9 of the agent of machine $last (rank $((last * nproc)) to $((machines * nproc - 1)))"
    kill -9 "${agents[last]}"
    { wait "${agents[last]}" || true; } 2>/dev/null # quietly
  else
    say break "ip link set port$last down: machine $last (rank $((last * nproc)) to $((machines * nproc - 1))) is unplugged"
    ip -n "$net-switch" link set "port$last" down
  fi
  if [[ $break == kill ]]; then wait_for_others "$last"; else wait_for_others; fi
  wait "$shown" || true
  for ((at = 1; at < machines; ++at)); do show_log "$at"; done
  for ((at = 0; at < machines; ++at)); do
    if ((at == last)) && [[ $break == kill ]]; then continue; fi
    took=$((ended[at] - began))
    said=$(grep -oE 'rank [0-9]+ lost' "$folder/machine$at.log" | sort -u | paste -sd, || true)
    say "machine $at" "ended $(seconds "$took") after that with exit code ${codes[at]}, naming: ${said:-nobody}"
    if ((took > 4000 || codes[at] != 4)) || [[ -z $said ]]; then wrong=1; fi
  done
  if ((wrong)); then stop "each must end within 4 s with exit code 4 and name a rank of the other side"; fi
  say result "all knew within 4 s"
}

# The last machine has another key and must be refused; the first one goes on waiting for the right one.
refuse_key() {
  local last=$((machines - 1)) began wrong=0 all=() at
  began=$(now_ms)
  for ((at = 0; at < last; ++at)); do all+=("$at"); done
  wait_for_others "${all[@]}"
  say break "machine $last ended $(seconds $((ended[last] - began))) after its start with exit code ${codes[last]}"
  while runs "${agents[0]}" && (($(now_ms) - began < 12000)); do pause; done # it says every 10 s for whom it waits
  runs "${agents[0]}" || wrong=1
  say break "asking machine 0 to stop"
  kill "${agents[0]}" 2>/dev/null || true
  wait_for_others
  wait "$shown" || true
  for ((at = 1; at < machines; ++at)); do show_log "$at"; done
  grep -q 'same key' "$folder/machine$last.log" && ((codes[last] != 0)) || wrong=1
  if ((wrong)); then stop "machine $last must be refused for its key, and machine 0 wait on"; fi
  say result "refused; machine 0 waited on"
}

while (($#)); do
  case $1 in
    --machines)
      machines=$(number "$1" "${2:-}" 200)
      shift 2
      ;;
    --nproc)
      nproc=$(number "$1" "${2:-}" 256)
      shift 2
      ;;
    --rate)
      rate=${2:-}
      [[ $rate =~ ^[0-9]+(\.[0-9]+)?[kmg]?bit$ ]] || stop "--rate = $rate: must be such as 1gbit or 100mbit"
      shift 2
      ;;
    --delay)
      delay=${2:-}
      [[ $delay =~ ^[0-9]+(\.[0-9]+)?[um]?s$ ]] || stop "--delay = $delay: must be such as 5ms or 200us"
      shift 2
      ;;
    --break)
      break=${2:-}
      [[ $break =~ ^(kill|unplug|key)$ ]] || stop "--break = $break: must be kill, unplug or key"
      shift 2
      ;;
    --help | -h)
      usage
      exit 0
      ;;
    --)
      shift
      break
      ;;
    *) break ;; # and all that follows is for cairn
  esac
done
for argument; do
  case $argument in
    --nnodes* | --node-rank* | --rendezvous* | --key* | --out* | --resume*) stop "$argument: this script says it itself" ;;
    --nproc* | --machines* | --rate* | --delay* | --break*) stop "$argument: must come before the arguments of cairn" ;;
  esac
done
((machines > 1)) || stop "--machines = $machines: must be at least 2"
[[ $(id -u) == 0 ]] || stop "network namespaces belong to root: run this as root"
command -v ip >/dev/null || stop "ip is missing; Debian: apt-get install -y iproute2, Fedora: dnf install -y iproute"
[[ -x $cairn ]] || stop "$cairn: no program there; set CAIRN to one"
if ((!$#)); then set -- --set train.steps=8 --set eval.every=100; fi

trap clean EXIT
trap 'exit 130' INT TERM
folder=$(mktemp -d /tmp/try-machines.XXXXXX)
"$cairn" key "$folder/key" >"$folder/key.log" 2>&1 || { cat "$folder/key.log" >&2 && stop "$cairn key failed"; }
"$cairn" key "$folder/other-key" >/dev/null 2>&1
make_network
say machines "$machines of $nproc rank(s) each, 10.77.0.1 to 10.77.0.$machines; cairn train $*"
for ((at = 0; at < machines; ++at)); do
  start_machine "$at" "$folder/$([[ $break == key ]] && ((at == machines - 1)) && echo other-)key" "$@"
done
show_output
case $break in
  kill | unplug) lose_machine ;;
  key) refuse_key ;;
  *)
    wait_for_others
    wait "$shown" || true
    for ((at = 1; at < machines; ++at)); do show_log "$at"; done
    [[ ${codes[*]} =~ ^0(\ 0)*$ ]] || stop "exit codes of the machines: ${codes[*]}"
    compare "$@"
    ;;
esac
