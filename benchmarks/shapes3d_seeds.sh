#!/bin/bash
# Train 20 fresh seeds of four methods on 3D Shapes with one GPU, within a time limit.
#
#   bash benchmarks/shapes3d_seeds.sh OUT SECONDS
#
# Called again, it resumes. OUT receives the log of each method and `found.tgz` with logs, metrics
# and the table, without weights. The seeds were never used for tuning, and no setting was changed
# for 3D Shapes. RUNS is the folder of the runs. Further variables make it a rehearsal on a CPU:
#
#   SEEDS=1 METHODS=staggered-18 DEVICE=cpu OPTIONS="--set data.images=200 --set training.steps=20" \
#     bash benchmarks/shapes3d_seeds.sh out 60
set -eu
out=$1 seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
runs=${RUNS:-runs/shapes3d} count=${SEEDS:-20} first=${FIRST:-401}
chains=()
for method in ${METHODS:-staggered-18 control-18 beta-100 factor}; do
  chains+=("reproduce table-shapes3d --only shapes3d-$method --runs $runs --seeds $count \
    --set training.seed=$first --device ${DEVICE:-cuda} ${OPTIONS:-}")
done
# Each method is a stack of its seeds; the four share the card.
bash "$here/../examples/share_gpu.sh" -t "$seconds" -o "$out" -r "$runs" "${chains[@]}"
