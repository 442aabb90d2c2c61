#!/bin/bash
# Train full-length fresh seeds on one GPU by several calls, each within a time limit.
#
#   bash benchmarks/fresh_seeds_full.sh OUT SECONDS             # start, or watch what was started
#   bash benchmarks/fresh_seeds_full.sh OUT SECONDS --weights   # the same, and pack the weights
#   bash benchmarks/fresh_seeds_full.sh OUT SECONDS --stop --weights   # evaluate, stop, pack
#
# Training continues between the calls. OUT receives `runs.json.gz`, with --weights also the weights
# of the latest checkpoints, and with --stop all scores. Further options go to `fresh_seeds.py full`.
# RUNS is the folder of the runs, STACKS what is trained.
set -u
out=$1 seconds=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
runs=${RUNS:-runs/full} python=${PYTHON:-python3}
# Ten seeds and six, in three processes of about equal size, which end at about the same time.
stacks=${STACKS:-shapes2d-control-18:301-310:5 shapes2d-staggered-18:301-306:6}
export PYTHONPATH="$here/..${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
if command -v nvidia-cuda-mps-control > /dev/null; then  # processes share the GPU
  export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  # Its output must not be ours: whoever reads ours would wait for the daemon.
  setsid nvidia-cuda-mps-control -d < /dev/null > /tmp/mps-log/start.txt 2>&1 || true
else
  echo "no MPS: processes take turns on the GPU, and training is slower"
fi
mkdir -p "$runs"
case " $* " in
  *" --stop "*) ;;  # evaluates everything
  *)  # measures the weights of step 100,000 once they exist
    setsid "$python" "$here/fresh_seeds.py" measure "$runs" < /dev/null >> "$runs/early.txt" 2>&1 &
    ;;
esac
# shellcheck disable=SC2086
"$python" "$here/fresh_seeds.py" full "$runs" $stacks --steps 1500000 --snapshot 100000 \
  --images 737280 --workers 6 --checkpoint-every 100 --seconds "$seconds" --pack "$out" "$@"
tail -n 3 "$runs"/stack-*.txt
