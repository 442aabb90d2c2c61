#!/bin/bash
# Several trainings beside each other on one GPU, and what they found in an archive small enough to carry home.
#
#   bash examples/share_gpu.sh -t 1500 -o found "reproduce table-celeba --seeds 3" \
#     "reproduce ablation-latent --seeds 3; reproduce ablation-batch --seeds 3"
#
# Each argument is a chain of `controlvae` commands, one after the other, separated by semicolons; chains run beside each
# other. A stack of few models leaves much of a large card idle, and NVIDIA's MPS lets processes share it. Trainings are
# told to stop cleanly -t seconds from now; what follows them, evaluating and writing tables, takes some minutes more.
# In -o: a log for each chain, and found.tgz with the runs below -r (runs): settings, logs, metrics and tables, no
# weights and no pictures. Unpacked elsewhere, `controlvae reproduce TABLE --no-train` works on it. Called without
# chains, it packs what there is so far.
set -u
limit=86400 out=found runs=runs
while getopts t:o:r: option; do
  case $option in t) limit=$OPTARG ;; o) out=$OPTARG ;; r) runs=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
case $limit in *[!0-9]* | '') echo "-t takes seconds, got $limit" >&2 && exit 2 ;; esac
controlvae=${CONTROLVAE:-controlvae}  # how to call it, such as `python3 -m controlvae`
began=$(date +%s)
mkdir -p "$out"

chain() {  # its commands in turn, each with the time that is left; fails where one of them does
  local command left status=0
  while IFS= read -r -d ';' command; do
    read -r command <<< "$(echo "$command" | tr '\n\t' '  ')"  # without the space around it
    [ -n "$command" ] || continue
    left=$((limit - ($(date +%s) - began)))
    case "$command" in
      train\ * | resume\ * | reproduce\ * | sweep\ *) command="$command --time-limit $((left > 0 ? left : 0))s" ;;
    esac
    echo "$(($(date +%s) - began)) s: $controlvae $command"
    eval "$controlvae $command" < /dev/null || status=1
  done <<< "$1;"
  echo "$(($(date +%s) - began)) s: done"
  return $status
}

if [ $# -gt 0 ] && command -v nvidia-cuda-mps-control > /dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/mps} CUDA_MPS_LOG_DIRECTORY=${CUDA_MPS_LOG_DIRECTORY:-/tmp/mps-log}
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d && trap 'echo quit | nvidia-cuda-mps-control' EXIT  # where it was not there already
fi
set -m  # a chain and all it starts are one group, to be stopped together
chains=()
trap 'for one in "${chains[@]}"; do kill -TERM -- "-$one"; done; wait; exit 130' INT TERM
for given in "$@"; do
  chain "$given" > "$out/chain-$((${#chains[@]} + 1)).txt" 2>&1 &
  chains+=($!)
done
failed=0
for number in "${!chains[@]}"; do
  wait "${chains[$number]}" || { failed=1 && echo "something failed: see $out/chain-$((number + 1)).txt" >&2; }
done
[ -d "$runs" ] || { echo "there is no folder $runs; -r says where the runs are" >&2; exit 1; }
find "$runs" -type f \( -name 'log.jsonl' -o -name 'events.jsonl' -o -name 'validation.jsonl' -o -name 'metrics.json' \
  -o -name 'experiment.json' -o -name '*.md' -o -name '*.csv' \) -print0 |
  tar --null -czf "$out/found.tgz" -T - && ls -l "$out/found.tgz"
find "$runs" -name '*.md' -exec cat {} +
exit $failed
