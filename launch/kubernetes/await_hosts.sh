# The launcher pod's command: waits until every host answers by ssh, then runs mpiexec. A pod may still be
# pulling its image or be missing in the DNS. Arguments: hostfile, time-out in seconds, mpiexec and its arguments.
trap 'exit 143' TERM
await() {
  attempt=1
  until reason=$(ssh -n -o BatchMode=yes -o ConnectTimeout=5 "$1" true 2>&1); do
    seconds=$(($(date +%s) - begun))
    echo "meshrun: waiting for ssh to $1, attempt $attempt, $seconds s: $reason" | tr -d '\r' >&2
    if [ "$seconds" -ge "$timeout" ]; then
      refuse "no answer by ssh from $1 in $seconds s. Try: kubectl describe pod ${1%%.*}"
      return 1
    fi
    sleep $((attempt < 5 ? attempt : 5))
    attempt=$((attempt + 1))
  done
}
refuse() {
  echo "meshrun: $1" >&2
  # A status line, as from a rank, for the process that follows the log.
  line='\036meshrun-run %s failure {"exit_code": 1, "sentence": "%s", "rank": 0}\n'
  [ -z "${MESHRUN_TOKEN:-}" ] || printf "$line" "$MESHRUN_TOKEN" "$1" >&2
}
timeout=$2 begun=$(date +%s)
waiting=
for host in $(sed 's/[ :].*//' "$1"); do
  await "$host" &
  waiting="$waiting $!"
done
shift 2
late=
for each in $waiting; do
  wait "$each" || late=1
done
[ -z "$late" ] || exit 1
