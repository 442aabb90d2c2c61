#!/usr/bin/env bash
# Starts and stops a Slurm cluster of one node, without systemd and without cgroups.
#
#   tests/cluster/slurm_node.sh install        install Debian's packages (root)
#   tests/cluster/slurm_node.sh start FOLDER   start munged, slurmctld and slurmd
#   tests/cluster/slurm_node.sh stop FOLDER    stop them, by the process ids in FOLDER
#
# All files are in FOLDER, and ports are free ones, so that a cluster of the machine is not touched.
# After `start`, `export SLURM_CONF=FOLDER/slurm.conf` selects this cluster. Exit status 77 means
# that the machine cannot run it, with the reason on stderr.
set -euo pipefail

CORES=${CORES:-2}          # of the node, as Slurm counts them: jobs may share the real ones
KILL_WAIT=${KILL_WAIT:-10}  # seconds between SIGTERM and SIGKILL
# NODE_PREFIX is put before slurmd, for tests in which the node sees other files.

skip() {
    echo "skipped: $*" >&2
    exit 77
}

give_up() {
    stop "$1"
    skip "$2"
}

free_ports() {
    python3 - <<'PYTHON'
import socket

sockets = [socket.socket() for _ in range(2)]
for one in sockets:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))
PYTHON
}

require_programs() {
    [ "$(id -u)" = 0 ] || skip "slurmd needs root"
    for program in munged slurmctld slurmd sbatch; do
        command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin command -v "$program" >/dev/null ||
            skip "$program is not installed; as root: $0 install"
    done
}

write_config() {
    local folder=$1 ports host memory
    read -r -a ports <<<"$(free_ports)"
    host=$(hostname -s)
    memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
    # cgroups need systemd or a writable hierarchy, so processes are tracked through /proc.
    cat >"$folder/slurm.conf" <<CONF
ClusterName=onenode
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=$KILL_WAIT
ReturnToService=2
JobRequeue=1
MinJobAge=300
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=$CORES RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 DefaultTime=5 State=UP OverSubscribe=NO
PartitionName=other Nodes=ALL Default=NO MaxTime=5 State=UP
CONF
}

start() {
    local folder
    require_programs
    mkdir -p "$1"
    folder=$(cd "$1" && pwd)
    [ ! -e "$folder/slurm.conf" ] || { echo "$folder holds a cluster: stop it first" >&2; exit 2; }
    PATH=$PATH:/usr/sbin
    # munged refuses a socket below folders that others may write, unless it is told to take it.
    mkdir -p "$folder/state" "$folder/spool"
    chmod 755 "$folder"
    (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
    write_config "$folder"
    export SLURM_CONF=$folder/slurm.conf
    munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
        --log-file="$folder/munged.log" --pid-file="$folder/munged.pid" \
        --seed-file="$folder/munged.seed" || skip "munged does not start: $folder/munged.log"
    slurmctld -c || give_up "$folder" "slurmctld does not start: $folder/slurmctld.log"
    # shellcheck disable=SC2086  # NODE_PREFIX is a program with arguments, such as unshare
    ${NODE_PREFIX:-} slurmd -c || give_up "$folder" "slurmd does not start: $folder/slurmd.log"
    for _ in $(seq 60); do
        if sinfo --noheader --format=%T 2>/dev/null | grep -q idle; then
            echo "export SLURM_CONF=$folder/slurm.conf"
            return
        fi
        sleep 0.5
    done
    tail -3 "$folder/slurmctld.log" "$folder/slurmd.log" >&2
    give_up "$folder" "the node does not become idle"
}

stop() {
    local folder pid name
    folder=$(cd "$1" && pwd)
    export SLURM_CONF=$folder/slurm.conf
    scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null || true
    scancel --user="$(id -un)" 2>/dev/null || true
    for name in slurmd slurmctld munged; do
        [ -s "$folder/$name.pid" ] || continue
        pid=$(cat "$folder/$name.pid")
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 50); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    done
    rm -f "$folder/slurm.conf"
}

case "${1:-}" in
    install)
        [ "$(id -u)" = 0 ] || skip "packages are installed by root"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            slurm-wlm munge
        ;;
    start) start "$2" ;;
    stop) stop "$2" ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
