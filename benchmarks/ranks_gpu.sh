#!/bin/bash
# Measure on one GPU what several ranks and packed jobs need one for, within a time limit.
#
#   bash benchmarks/ranks_gpu.sh OUT [SECONDS]
#
# Parts, in the order of their importance: what DDP of one rank costs, and what two ranks
# communicate (ranks.txt); a sweep of four targets in one packed job (sweep.txt); whether two ranks
# agree with one process (agree.txt); plans of 40 runs (plan.txt); two ranks under MPS (mps.txt).
# A part that fails or takes too long does not stop the others. DEVICE=cpu tries it without a GPU.
# submitit must be importable: EXTRA names a folder that has it, if the environment does not.
set -u
out=$(realpath -m "$1") limit=${2:-240} device=${DEVICE:-cuda} python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
mkdir -p "$out"
export PYTHONPATH="$here/..${EXTRA:+:$(realpath "$EXTRA")}${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 CONTROLVAE_CACHE="$work/cache" TERM=dumb COLUMNS=200
export CUDA_MPS_PIPE_DIRECTORY="$work/no-mps"
gpus=1 agree_steps=200
[ "$device" = cpu ] && gpus=0 agree_steps=10

# part NAME SECONDS COMMAND...: run a command, and append its output and time to OUT/NAME.txt.
part() {
  local name=$1 seconds=$2 began=$SECONDS
  shift 2
  local left=$((limit - SECONDS))
  [ "$seconds" -gt "$left" ] && seconds=$left
  if [ "$seconds" -lt 5 ]; then
    echo "no time left for: $*" | tee -a "$out/$name.txt"
    return
  fi
  echo "\$ $*" >> "$out/$name.txt"
  timeout -k 5 "$seconds" "$@" < /dev/null >> "$out/$name.txt" 2>&1
  local status=$?
  echo "# status $status after $((SECONDS - began)) s, at $SECONDS s" >> "$out/$name.txt"
  echo "$name: status $status after $((SECONDS - began)) s, at $SECONDS s: $*"
}

sweep=(sweep shapes2d-control-16 --vary control.target=4,6,8,10 --device "$device"
  --set training.steps=3000 --set training.log_every=50 --set data.images=20000
  --set "control=Auto(4.0)")
if [ "$device" = cpu ]; then
  sweep+=(--set training.steps=20 --set training.log_every=5 --set data.images=256
    --set "model.channels=(4,4,4,4)" --set model.hidden=16)
fi

# The plan of 40 runs from the speeds in the package, and from a measurement of another batch size.
plan() {
  part plan "$1" "$python" -m controlvae "${sweep[@]}" --seeds 10 --run "$work/plan" \
    --cluster local --gpus $gpus --dry-run "${@:2}"
}

# The same four targets in one packed job, and in this process. Both logs must be equal.
sweeps() {
  part sweep 90 "$python" -m controlvae "${sweep[@]}" --run "$work/packed" \
    --cluster local --gpus $gpus
  part sweep 20 "$python" -m controlvae status "$work/packed"
  part sweep 60 "$python" -m controlvae "${sweep[@]}" --run "$work/here"
  part sweep 20 "$python" "$here/ranks_logs.py" "$work/packed" "$work/here"
  cat "$work/packed/jobs/"*.json >> "$out/sweep.txt" 2> /dev/null
}

under_mps() {
  if ! command -v nvidia-cuda-mps-control > /dev/null; then
    echo "no MPS on this machine" | tee -a "$out/mps.txt"
    return
  fi
  export CUDA_MPS_PIPE_DIRECTORY="$work/mps" CUDA_MPS_LOG_DIRECTORY="$work/mps-log"
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  # Its output must not be ours: whoever reads ours would wait for the daemon.
  setsid nvidia-cuda-mps-control -d < /dev/null > "$work/mps-log/start.txt" 2>&1
  part mps 45 "$python" "$here/ranks_agree.py" --device "$device" --steps $agree_steps --skip-command
  part mps 45 "$python" "$here/ranks.py" --device "$device" --ranks 2 --rounds 3 --steps 50
  cat "$work/mps-log/"*.log 2> /dev/null | tail -n 20 >> "$out/mps.txt"
  echo quit | timeout 10 nvidia-cuda-mps-control > /dev/null 2>&1
}

{
  date
  nproc --all
  "$python" --version
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode --format=csv 2> /dev/null
} > "$out/machine.txt" 2>&1

if [ "$device" = cpu ]; then
  part ranks 300 "$python" "$here/ranks.py" --steps 1 --rounds 1 --ranks 2
else # alone on the machine, because it is a timing
  part ranks 110 "$python" "$here/ranks.py" --device cuda --networks shapes photographs \
    --steps 60 --rounds 7
fi
sweeps &
part agree 90 "$python" "$here/ranks_agree.py" --device "$device" --steps $agree_steps
plan 30
wait
plan 80 --set training.batch=128 # a measurement, so nothing else runs
under_mps
rm -rf "$work"
echo "all parts ended at $SECONDS s"
