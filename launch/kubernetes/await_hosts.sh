# The launcher pod's command: mpiexec, once every host answers by ssh. A host's pod may still be pulling the
# image, and the DNS not know it yet. Arguments: hostfile, seconds that it may take, mpiexec and its words.
trap 'exit 143' TERM
await() {
  attempt=1
  until reason=$(ssh -n -o BatchMode=yes -o ConnectTimeout=5 "$1" true 2>&1); do
    seconds=$(($(date +%s) - begun))
    echo "meshrun: waiting for ssh to $1, attempt $attempt, $seconds s: $reason" | tr -d '\r' >&2
    if [ "$seconds" -ge "$patience" ]; then
      refuse "no answer by ssh from $1 in $seconds s. Try: kubectl describe pod ${1%%.*}"
      return 1
    fi
    sleep $((attempt < 5 ? attempt : 5))
    attempt=$((attempt + 1))
  done
}
refuse() {
  echo "meshrun: $1" >&2
  # As a rank tells a failure whoever follows the log.
  line='\036meshrun-run %s failure {"exit_code": 1, "sentence": "%s", "rank": 0}\n'
  [ -z "${MESHRUN_TOKEN:-}" ] || printf "$line" "$MESHRUN_TOKEN" "$1" >&2
}
patience=$2 begun=$(date +%s)
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
