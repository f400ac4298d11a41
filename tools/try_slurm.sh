#!/usr/bin/env bash
# Runs a command as the ranks of a real Slurm job on this machine alone: Debian's munged, slurmctld and slurmd, started for it in a
# temporary folder and ended with it. For whoever wants to see Cairn under Slurm without a cluster; needs root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
nodes=1 tasks=2 batch='' folder='' started=()

usage() {
  cat <<'TEXT'
usage: tools/try_slurm.sh [--nodes N] [--tasks N] [--batch] [COMMAND...]
  --nodes N   virtual nodes, each a slurmd of its own on loopback (default 1); the nodes are named n1, n2, ...
  --tasks N   tasks over all nodes (default 2)
  --batch     run COMMAND in the body of a batch script, without srun
  COMMAND     what each task runs (default: ./cairn train recipes/spirals.toml --set train.steps=20)
example: tools/try_slurm.sh --nodes 2 --tasks 4 sh -c 'env | grep ^SLURM_ | sort'
TEXT
}

say() { printf '%-9s %s\n' "$1" "$2" >&2; }
stop() {
  say error "$1"
  exit 2
}

# A whole number of at least one; $1 is the option.
number() {
  [[ ${2:-} =~ ^[1-9][0-9]{0,2}$ ]] || stop "$1 = ${2:-}: must be a number from 1 to 999"
  echo "$2"
}

install_slurm() {
  local missing=()
  command -v munged >/dev/null || missing+=(munge)
  command -v slurmctld >/dev/null || missing+=(slurmctld)
  command -v slurmd >/dev/null || missing+=(slurmd)
  command -v srun >/dev/null || missing+=(slurm-client)
  if ((!${#missing[@]})); then return; fi
  command -v apt-get >/dev/null || stop "missing ${missing[*]}, and this machine has no apt-get"
  say packages "installing ${missing[*]}"
  if ! DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >"$folder/apt.log" 2>&1; then
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$folder/apt.log" 2>&1 ||
      { tail -n 20 "$folder/apt.log" >&2 && stop "apt-get could not install ${missing[*]}"; }
  fi
}

# Ends what this script started, youngest first, and what runs under it; then removes the folder.
clean() {
  local status=$? at pid
  trap - EXIT
  if [[ -n ${SLURM_CONF:-} ]] && timeout 5 scancel --user=root >/dev/null 2>&1; then
    for ((at = 0; at < 50; ++at)); do # until no step is left: one that outlives its slurmd would stay
      if [[ -z $(timeout 5 squeue --noheader 2>/dev/null) && -z $(of_this_folder stepd) ]]; then break; fi
      pause
    done
  fi
  for ((at = ${#started[@]} - 1; at >= 0; --at)); do kill "${started[at]}" 2>/dev/null || true; done
  for pid in "${started[@]}"; do
    (wait_gone "$pid") || kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  for pid in $(of_this_folder ''); do kill -9 "$pid" 2>/dev/null || true; done
  if [[ -n $folder ]]; then rm -rf "$folder"; fi
  say ended "exit code $status; nothing is left running"
  exit "$status"
}

# Processes with $1 in their name that were started with this folder's settings.
of_this_folder() {
  local file name
  if [[ -z ${SLURM_CONF:-} ]]; then return; fi
  for file in $(env -u SLURM_CONF grep -slzF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ); do
    { read -r name <"${file%environ}comm"; } 2>/dev/null || continue
    if [[ $name == *"$1"* ]]; then basename "${file%/environ}"; fi
  done
}

# Waits at most 5 s for a process of ours to end (it stays a zombie until it is waited for).
wait_gone() {
  local end=$((SECONDS + 5)) state=
  while { read -r _ _ state _ <"/proc/$1/stat"; } 2>/dev/null && [[ $state != Z ]]; do
    if ((SECONDS >= end)); then return 1; fi
    pause
  done
}

pause() { read -rt 0.1 <> <(:) || true; }

# Waits until the command succeeds, at most $1 seconds; shows the end of log $2 where it does not.
wait_for() {
  local seconds=$1 log=$2 end=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS >= end)); then
      tail -n 15 "$log" >&2 || true
      stop "$1 ${*:2}: not so after $seconds s (log above)"
    fi
    pause
  done
}

# $1 ports in a row that nobody listens on.
free_ports() {
  local first at
  for ((first = 21000 + $$ % 5000; first < 60000; first += $1)); do
    for ((at = first; at < first + $1; ++at)); do
      if (exec 3<>"/dev/tcp/127.0.0.1/$at") 2>/dev/null; then continue 2; fi
    done
    echo "$first" && return
  done
  stop "no $1 free ports in a row"
}

write_settings() {
  local ports per_node=$(((tasks + nodes - 1) / nodes)) node
  ports=$(free_ports $((nodes + 1)))
  cat >"$folder/slurm.conf" <<TEXT
ClusterName=try
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$ports
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmdParameters=config_overrides
SelectType=select/linear
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
TEXT
  cp /etc/hosts "$folder/hosts"
  for ((node = 1; node <= nodes; ++node)); do
    echo "NodeName=n$node NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((ports + node)) CPUs=$per_node State=UNKNOWN" >>"$folder/slurm.conf"
    echo "127.0.0.$node n$node" >>"$folder/hosts"
    mkdir -p "$folder/spool-n$node"
  done
  echo "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$folder/slurm.conf"
}

start_slurm() {
  local node hosts=(env)
  install -d -m 0755 "$folder/munge" "$folder/state"
  (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
  # In sessions of their own: Ctrl-C is for this script, which ends them in order.
  setsid munged --foreground --key-file="$folder/munge.key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" >/dev/null 2>&1 &
  started+=($!)
  wait_for 10 "$folder/munged.log" munge --socket="$folder/munge/socket" --no-input
  setsid slurmctld -D -i -f "$folder/slurm.conf" >"$folder/slurmctld.log" 2>&1 &
  started+=($!)
  # The names of the nodes are known to their tasks alone: their own view of /etc/hosts.
  # shellcheck disable=SC2016
  if unshare --mount true 2>/dev/null; then
    hosts=(unshare --mount sh -c 'mount --bind "$0" /etc/hosts && exec "$@"' "$folder/hosts")
  elif ((nodes > 1)); then
    say note "no mount namespace can be made here: the names n1, n2, ... stay unknown to the tasks"
  fi
  for ((node = 1; node <= nodes; ++node)); do
    setsid "${hosts[@]}" slurmd -D -N "n$node" -f "$folder/slurm.conf" >"$folder/slurmd-n$node.log" 2>&1 &
    started+=($!)
  done
  wait_for 30 "$folder/slurmctld.log" all_idle
}

all_idle() { [[ $(sinfo --noheader --Node --states=idle --format=%N | wc -l) == "$nodes" ]]; }

run_command() {
  local status=0
  if [[ -n $batch ]]; then
    printf '#!/usr/bin/env bash\n%s\n' "$(printf '%q ' "$@")" >"$folder/body.sh"
    say sbatch "nodes=$nodes tasks=$tasks: $*"
    sbatch --wait --nodes="$nodes" --ntasks="$tasks" --output="$folder/batch.out" "$folder/body.sh" >&2 &
    wait $! || status=$?
    cat "$folder/batch.out"
  else
    say srun "nodes=$nodes tasks=$tasks: $*"
    srun --nodes="$nodes" --ntasks="$tasks" --label --kill-on-bad-exit=1 "$@" &
    wait $! || status=$? # in the background, for this shell hears no signal while it waits for one in front
  fi
  say result "exit code $status after $SECONDS s"
  return "$status"
}

while (($#)); do
  case $1 in
    --nodes)
      nodes=$(number "$1" "${2:-}")
      shift 2
      ;;
    --tasks)
      tasks=$(number "$1" "${2:-}")
      shift 2
      ;;
    --batch)
      batch=1
      shift
      ;;
    --help | -h)
      usage
      exit 0
      ;;
    --)
      shift
      break
      ;;
    -*)
      usage >&2
      stop "unknown option $1"
      ;;
    *) break ;;
  esac
done
((tasks >= nodes)) || stop "--tasks = $tasks: must be at least --nodes = $nodes"
[[ $(id -u) == 0 ]] || stop "Slurm's daemons switch users: run this as root"
if ((!$#)); then
  cd "$root"
  set -- ./cairn train recipes/spirals.toml --set train.steps=20
fi

folder=$(mktemp -d /tmp/try-slurm.XXXXXX)
chmod 0755 "$folder"
trap clean EXIT
trap 'exit 130' INT TERM
install_slurm
write_settings
export SLURM_CONF=$folder/slurm.conf
start_slurm
run_command "$@"
