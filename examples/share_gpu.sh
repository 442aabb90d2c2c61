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
controlvae=${CONTROLVAE:-controlvae}  # how to call it, such as `python3 -m controlvae`
began=$(date +%s)
mkdir -p "$out"

chain() {  # its commands in turn, each with the time that is left
  local IFS=';' command
  for command in $1; do
    IFS=' '
    command=${command# }
    local left=$((limit - ($(date +%s) - began)))
    case "$command" in
      train\ * | resume\ * | reproduce\ * | sweep\ *) command="$command --time-limit $((left > 0 ? left : 0))s" ;;
    esac
    echo "$(($(date +%s) - began)) s: $controlvae $command"
    eval "$controlvae $command"
  done
  echo "$(($(date +%s) - began)) s: done"
}

if [ $# -gt 0 ] && command -v nvidia-cuda-mps-control > /dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/mps} CUDA_MPS_LOG_DIRECTORY=${CUDA_MPS_LOG_DIRECTORY:-/tmp/mps-log}
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d || true  # it may be there already
fi
number=0
for given in "$@"; do
  number=$((number + 1))
  chain "$given" > "$out/chain-$number.txt" 2>&1 &
done
wait
[ -d "$runs" ] || { echo "there is no folder $runs; -r says where the runs are" >&2; exit 1; }
find "$runs" -type f \( -name 'log.jsonl' -o -name 'events.jsonl' -o -name 'validation.jsonl' -o -name 'metrics.json' \
  -o -name 'experiment.json' -o -name 'environment.json' -o -name '*.md' -o -name '*.csv' \) -print0 |
  tar --null -czf "$out/found.tgz" -T - && ls -l "$out/found.tgz"
find "$runs" -name '*.md' -exec cat {} +
