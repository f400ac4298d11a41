# What scripts share that try Cairn on machines which are network namespaces of this one. They set: net (what the namespaces are called:
# net-switch, net-0, net-1, ...), machines, rate, delay, folder, agents. Sourced, not run.

say() { printf '%-9s %s\n' "$1" "$2" >&2; }
stop() {
  say error "$1"
  exit 2
}

# A whole number from 1 to $3; $1 is the option.
number() {
  if [[ ! ${2:-} =~ ^[1-9][0-9]{0,2}$ ]] || (($2 > $3)); then stop "$1 = ${2:-}: must be a number from 1 to $3"; fi
  echo "$2"
}

pause() { read -rt 0.05 <> <(:) || true; }
now_ms() { echo $((${EPOCHREALTIME//[!0-9]/} / 1000)); }
seconds() { printf '%d.%d s' $(($1 / 1000)) $(($1 % 1000 / 100)); }

# Whether a process of ours runs (it stays a zombie until it is waited for).
runs() {
  local state
  { read -r _ _ state _ <"/proc/$1/stat"; } 2>/dev/null && [[ $state != Z ]]
}

# Ends the machines, takes them apart, and removes the folder.
clean() {
  local status=$? pid at end name
  trap - EXIT
  trap '' INT TERM
  for pid in "${agents[@]}"; do kill "$pid" 2>/dev/null || true; done
  end=$((SECONDS + 10))
  for pid in "${agents[@]}"; do
    while runs "$pid" && ((SECONDS < end)); do pause; done
    kill -9 "$pid" 2>/dev/null || true # its ranks end with it
    wait "$pid" 2>/dev/null || true
  done
  for ((at = 0; at < machines; ++at)); do
    if [[ -e /run/netns/$net-$at ]]; then ip netns delete "$net-$at"; fi
  done
  if [[ -e /run/netns/$net-switch ]]; then ip netns delete "$net-switch"; fi # and with it the switch and all its cables
  if [[ -n $folder ]]; then rm -rf "$folder"; fi
  name=$(ip netns list 2>/dev/null | grep "^$net-" || true)
  say ended "exit code $status; ${name:-nothing is left}"
  exit "$status"
}

# The switch has a namespace of its own: nothing of this machine's network is touched.
make_network() {
  local at why="this needs root and a kernel (or container) that allows network namespaces, veth and bridge"
  ip netns add "$net-switch" || stop "no network namespace: $why"
  ip -n "$net-switch" link add switch type bridge || stop "no bridge: $why"
  ip -n "$net-switch" link set switch up
  for ((at = 0; at < machines; ++at)); do
    ip netns add "$net-$at"
    ip -n "$net-switch" link add "port$at" type veth peer name eth0 netns "$net-$at" || stop "no veth pair: $why"
    ip -n "$net-switch" link set "port$at" master switch up
    ip -n "$net-$at" link set lo up
    ip -n "$net-$at" address add "10.77.0.$((at + 1))/24" dev eth0
    ip -n "$net-$at" link set eth0 up
  done
  if [[ -n $rate$delay ]]; then shape; fi
}

# What each machine sends goes through a queue of this rate and delay.
shape() {
  local at as='' ask=() on
  if ! command -v tc >/dev/null; then
    say note "tc is not here (Debian: apt-get install iproute2): the links stay as fast as they are"
    return
  fi
  if [[ -n $delay ]]; then ask+=(delay "$delay"); fi
  if [[ -n $rate ]]; then ask+=(rate "$rate"); fi
  for ((at = 0; at < machines; ++at)); do
    on=(ip netns exec "$net-$at" tc qdisc add dev eth0 root)
    if "${on[@]}" netem "${ask[@]}" limit 20000 2>"$folder/tc.log"; then
      as=netem
    elif [[ -n $rate ]] && "${on[@]}" tbf rate "$rate" burst 256kb latency 100ms 2>>"$folder/tc.log"; then
      as="tbf${delay:+; no delay of $delay: this kernel has no netem}"
    else
      say note "tc: $(tail -n 1 "$folder/tc.log"): the links stay as fast as they are"
      return
    fi
  done
  say links "${ask[*]} ($as)"
}

# The cores of machine $1: its share of those that are here, or one that it shares. With all cores each, threads of machines would wait
# for each other.
cores_of() {
  local range all=() first last
  for range in $(taskset -cp $$ | sed 's/.*: //; s/,/ /g'); do mapfile -t -O "${#all[@]}" all < <(seq "${range%-*}" "${range#*-}"); done
  first=$(($1 * ${#all[@]} / machines)) last=$((($1 + 1) * ${#all[@]} / machines - 1))
  if ((last < first)); then first=$(($1 % ${#all[@]})) last=$(($1 % ${#all[@]})); fi
  (IFS=, && echo "${all[*]:first:last-first+1}")
}
