#!/bin/sh
# Measure the interconnect inside this node (meshrun validate). Drain a critical node, with a reason that names
# the part. Copy this script to every node and add one or both of these to slurm.conf:
#
#     HealthCheckProgram=/etc/slurm/healthcheck.sh     Prolog=/etc/slurm/healthcheck.sh
#     HealthCheckInterval=3600                         (or Epilog=)
#     HealthCheckNodeState=IDLE,CYCLE
#
# As HealthCheckProgram, the script measures only nodes without jobs. As Prolog or Epilog, it measures if the
# job has all GPUs of the node, and fails on a critical node; Slurm then requeues the job.
# Run by hand:
#
#     healthcheck.sh --dry-run            measure, and print what would be done
#     healthcheck.sh --undrain [NODE]     resume a node that this script has drained, and no other
#
# Settings are lines of /etc/meshrun/healthcheck.conf, such as MESHRUN_DRY_RUN=1: slurmd gives a
# HealthCheckProgram neither arguments nor environment variables, not even SLURM_CONF.
#
#     MESHRUN=meshrun             the command, or a script that loads what it needs
#     MESHRUN_OPTIONS="--quick --rungs gpu,host,pairs,node"    default; of a single GPU, --rungs gpu,host
#     MESHRUN_SECONDS=50          total time limit; slurmd kills a HealthCheckProgram after 60
#     MESHRUN_GPUS=N              expected number of GPUs; default: the number configured in Slurm
#     MESHRUN_DRAIN_ON_UNKNOWN=   1: also drain a node whose verdict is unknown
#     MESHRUN_RESUME=             N: measure a node that this script has drained, and resume it after N checks
#                                 in a row that are ok; default: only --undrain resumes
#     MESHRUN_STATE=/var/lib/meshrun-healthcheck    folder that keeps why this script has drained the node
#     MESHRUN_DRY_RUN=            1: like --dry-run
#     MESHRUN_SIMULATE=SPEC       rehearsal: judge this simulated fleet instead of the GPUs
#     MESHRUN_LOCK=/run/meshrun-healthcheck.lock

# slurmd sets no PATH.
export PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export HOME="${HOME:-/root}"

settings=${MESHRUN_CONF:-/etc/meshrun/healthcheck.conf}
if [ -r "$settings" ]; then
  # A syntax error there would end this shell, and a failing prolog drains the node, and in time every node.
  sh -n "$settings" || exit 0
  # shellcheck source=/dev/null
  . "$settings"
fi
set -u
meshrun=${MESHRUN:-meshrun}
options=${MESHRUN_OPTIONS:-}
seconds=${MESHRUN_SECONDS:-50}
simulated=${MESHRUN_SIMULATE:-}
dry=${MESHRUN_DRY_RUN:-}
lock=${MESHRUN_LOCK:-/run/meshrun-healthcheck.lock}
resume=${MESHRUN_RESUME:-}
kept=${MESHRUN_STATE:-/var/lib/meshrun-healthcheck}
node=${SLURMD_NODENAME:-$(hostname -s)}
last=12 # seconds kept for draining
begun=$(date +%s)

say() { # priority, sentence
  printf 'meshrun: %s\n' "$2"
  logger -t meshrun -p "daemon.$1" -- "$2" 2>/dev/null || :
}

skip() {
  say info "$1: not measured"
  exit 0
}

# Query Slurm about the node; set state, cpus (those allocated to jobs), gres and reason.
describe() {
  state='' cpus='' gres='' reason=''
  described=$(timeout -k 1 5 scontrol show node "$node" 2>&1) || return 1
  state=$(field State) cpus=$(field CPUAlloc) gres=$(field Gres)
  reason=$(printf '%s\n' "$described" | sed -n 's/^ *Reason=//p' | sed 's/ \[[^]]*\]$//')
  [ -n "$state" ] && [ -n "$cpus" ]
}

field() {
  printf '%s\n' "$described" | sed -n "s/^ *$1=\([^ ]*\).*/\1/p"
}

# Skip a node in use, so that no job is disturbed or measured. Set wanted: the GPUs configured in Slurm.
ask_leave() {
  if [ -n "$job" ]; then
    # Do not query the controller: it would get one query from every node of every job.
    wanted=$(printf '%s' "${SLURM_JOB_GPUS:-}" | tr ',' '\n' | grep -c '[0-9]')
    [ "$wanted" -gt 0 ] || skip "job $job has no GPU of $node"
    return
  fi
  describe || skip "Slurm does not say what $node does ($(printf '%s' "$described" | tail -n 1))"
  case $state in
    *DOWN* | *FAIL* | *MAINT* | *REBOOT* | *POWER* | *COMPLETING*) skip "$node is $state" ;;
    *DRAIN*) may_return || skip "$node is $state" ;;
  esac
  [ "$cpus" -eq 0 ] || skip "$node has jobs"
  # gpu:h200:8(S:0-1),shard:64 are 8.
  wanted=$(printf '%s' "$gres" | sed 's/([^)]*)//g' | tr ',' '\n' |
    awk -F: '$1 == "gpu" { count += $NF } END { print count + 0 }')
  # HealthCheckProgram runs on every node of the cluster.
  [ "${MESHRUN_GPUS:-$wanted}" -gt 0 ] || skip "Slurm counts on no GPU of $node"
}

# Whether a drained node may be resumed: this script has drained it, for a part that it measures. Somebody may
# have drained the node for a path between nodes, with a reason in the same form. Set returning.
may_return() {
  [ -n "$resume" ] && [ "$reason" = "$(cat "$kept/reason" 2>/dev/null)" ] && [ -n "$reason" ] || return 1
  returning=1
}

# Count the checks of a drained node that are ok, one after the other, and resume it after enough.
return_node() {
  passed=$(($(cat "$kept/passed" 2>/dev/null || echo 0) + 1))
  if [ "$passed" -lt "$resume" ]; then
    [ -n "$dry" ] || echo "$passed" >"$kept/passed" || exit 0
    say info "$node stays drained: $passed of $resume checks passed since"
    exit 0
  fi
  if [ -n "$dry" ]; then
    say info "would run: scontrol update nodename=$node state=resume"
    exit 0
  fi
  # Somebody may have given another reason meanwhile.
  if ! describe || ! may_return; then
    skip "$node is $state ($reason)"
  fi
  timeout -k 1 5 scontrol update "nodename=$node" state=resume || exit 0
  say notice "$node is resumed after $passed checks that passed: ${reason#meshrun: }"
  rm -f "$kept/reason" "$kept/passed"
}

# Set gpus: those that the driver lists. Use files, as $(...) would wait for a process that cannot be killed.
count_gpus() {
  timeout -k 2 5 nvidia-smi -L >"$folder/gpus" 2>&1 9>&-
  gpus=$(grep -c '^GPU ' "$folder/gpus")
  if grep -q '^ *MIG ' "$folder/gpus"; then
    skip "the GPUs of $node are divided (MIG)"
  fi
  [ -z "$job" ] || [ "$wanted" -ge "$gpus" ] || skip "job $job has $wanted of the $gpus GPUs of $node"
  timeout -k 2 5 nvidia-smi --query-compute-apps=pid --format=csv,noheader >"$folder/pids" 2>/dev/null 9>&-
  pids=$(sed -n 's/^ *\([0-9][0-9]*\).*/\1/p' "$folder/pids" | sort -un | tr '\n' ' ')
  [ -z "$pids" ] || skip "GPUs of $node are in use by process ${pids% }"
}

# Set verdict and sentence. The output begins with the verdict, and the exit status must match it; otherwise,
# or without a verdict, the result is unknown.
judge() {
  # A rung that is named and cannot be measured makes the verdict unknown.
  if [ -z "$options" ]; then
    options="--quick --rungs gpu,host,pairs,node"
    [ "$gpus" != 1 ] || options="--quick --rungs gpu,host"
  fi
  left=$((begun + seconds - last - $(date +%s)))
  [ "$left" -gt 0 ] || left=1 # 0 would be no limit
  # The lock is not for what may be left of it. $options are words.
  # shellcheck disable=SC2086
  timeout -k 3 "$left" "$meshrun" "$@" $options >"$folder/out" 2>"$folder/err" </dev/null 9>&-
  status=$?
  line=$(head -n 1 "$folder/out")
  case $status in 0) verdict=ok ;; 1) verdict=warning ;; 2) verdict=critical ;; *) verdict=unknown ;; esac
  case $(printf '%s' "$line" | tr '[:upper:]' '[:lower:]') in
    "$verdict: "*) sentence=${line#*: } ;;
    *)
      verdict=unknown
      case $status in
        124 | 137) sentence="no verdict within $left s" ;;
        *) sentence="no verdict, exit status $status: $(tail -n 1 "$folder/err")" ;;
      esac
      ;;
  esac
}

drain() { # for what
  # 255 bytes are what Slurm's database keeps, and not every script that reads a reason quotes it.
  plain=$(printf '%s' "$1" | LC_ALL=C tr -c 'A-Za-z0-9 .,:;%/()+_=@#-' '?' | LC_ALL=C cut -c 1-230)
  describe || :
  case $state in
    *DRAIN* | *DOWN* | *FAIL*)
      say err "$node is $state already ($reason), otherwise it would be for: $1"
      return
      ;;
  esac
  # Discard a measurement that shared the node with a job.
  [ -n "$job$simulated" ] || [ "${cpus:-0}" -eq 0 ] || skip "a job has started on $node meanwhile"
  if [ -n "$dry" ]; then
    say info "would run: scontrol update nodename=$node state=drain reason='meshrun: $plain'"
    return
  fi
  plain="meshrun: $plain"
  if ! answer=$(timeout -k 1 5 scontrol update "nodename=$node" state=drain "reason=$plain" 2>&1); then
    say err "cannot drain $node ($answer), and it should be: $1"
    exit 1
  fi
  say err "$node is drained: $1"
  # Without this note, the node is not resumed by itself.
  (mkdir -p "$kept" && printf '%s\n' "$plain" >"$kept/reason" && rm -f "$kept/passed") 2>/dev/null || :
}

undrain() {
  if ! describe; then
    say err "Slurm does not say what $node does ($described)"
    exit 1
  fi
  ours=''
  case $reason in "meshrun: "*) ours=1 ;; esac
  case $state in *DOWN* | *FAIL*) ours='' ;; *DRAIN*) ;; *) ours='' ;; esac
  if [ -z "$ours" ]; then
    say err "$node was not drained by meshrun: it is $state (${reason:-no reason}), and stays so"
    exit 1
  fi
  if [ -n "$dry" ]; then
    say info "would run: scontrol update nodename=$node state=resume"
    exit 0
  fi
  timeout -k 1 5 scontrol update "nodename=$node" state=resume || exit 1
  say notice "$node is resumed; it was drained for: ${reason#meshrun: }"
  exit 0
}

usage() {
  echo "usage: healthcheck.sh [--dry-run] [--undrain [NODE]]" >&2
  exit 64
}

undrain=''
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry=1 ;;
    --undrain)
      undrain=1
      case ${2:-} in '' | -*) ;; *) node=$2; shift ;; esac
      ;;
    *) usage ;;
  esac
  shift
done
[ -z "$undrain" ] || undrain

case ${SLURM_SCRIPT_CONTEXT:-} in
  '' | prolog_slurmd | epilog_slurmd) job=${SLURM_JOB_ID:-} ;;
  *) skip "$SLURM_SCRIPT_CONTEXT does not run on every node as root" ;;
esac

folder=$(mktemp -d) || skip "no folder for temporary files"
trap 'cd / && rm -rf "$folder"' EXIT
trap 'exit 143' HUP INT TERM
cd "$folder" || exit 0

case $resume in
  '' | [1-9] | [1-9][0-9]) ;;
  *)
    say warning "MESHRUN_RESUME=$resume is no number of checks, and is ignored"
    resume=''
    ;;
esac
gpus='' returning=''
if [ -n "$simulated" ]; then
  judge validate --simulate "$simulated"
  sentence="rehearsal: $sentence"
else
  # A redirection that fails would end the shell, and a prolog that fails drains the node.
  (: >>"$lock") 2>/dev/null || skip "cannot write $lock"
  exec 9>>"$lock"
  # A job's check waits for the one that began while the node was idle; that one need not be repeated at once.
  if [ -n "$job" ]; then flock -w 30 9; else flock -n 9; fi || skip "another check of $node is running"
  begun=$(date +%s)
  ask_leave
  count_gpus
  wanted=${MESHRUN_GPUS:-$wanted}
  if [ "$gpus" -eq 0 ]; then
    verdict=unknown sentence="host $node: nvidia-smi lists no GPU: $(tail -n 1 "$folder/gpus")"
  elif [ "$gpus" -lt "$wanted" ]; then
    verdict=critical sentence="host $node: the driver lists $gpus of $wanted GPUs"
  else
    judge -n "$gpus" validate
  fi
fi

[ "$verdict" = ok ] || rm -f "$kept/passed"
case $verdict in
  ok)
    say info "$node is ok: $sentence"
    [ -z "$returning" ] || return_node
    exit 0
    ;;
  warning)
    say warning "$node: warning: $sentence"
    exit 0
    ;;
  unknown)
    say err "$node: unknown: $sentence"
    [ -n "${MESHRUN_DRAIN_ON_UNKNOWN:-}" ] || exit 0
    drain "unknown: $sentence"
    ;;
  critical) drain "$sentence" ;;
esac
# Fail, so that Slurm starts the job elsewhere.
[ -z "$job" ] || [ -n "$dry" ] || exit 1
