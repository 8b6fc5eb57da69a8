#!/usr/bin/env bash
# A SLURM of two nodes on this machine, for tests: slurm_cluster.sh install | start DIR | stop DIR.
# As root, on Debian or Ubuntu; after start: export SLURM_CONF=DIR/slurm.conf
set -euo pipefail
what=$1
if [ "$what" = install ]; then
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends slurm-wlm munge
  exit
fi
folder=$(mkdir -p "$2" && cd "$2" && pwd)
export SLURM_CONF=$folder/slurm.conf
if [ "$what" = stop ]; then
  for file in "$folder"/*.pid; do
    [ -e "$file" ] && kill "$(cat "$file")" 2> /dev/null || true
  done
  exit
fi
host=$(hostname -s)
mkdir -p "$folder/state" "$folder/spool.n1" "$folder/spool.n2" /run/munge
if ! munge -n > /dev/null 2>&1; then
  chown munge: /run/munge
  su -s /bin/bash munge -c "munged --pid-file=/run/munge/test.pid"
  cp /run/munge/test.pid "$folder/munged.pid"
fi
# The address of process 0 is the name of the first node.
grep -q '\bn1 n2\b' /etc/hosts || echo '127.0.0.1 n1 n2' >> /etc/hosts
cpus=$(nproc)
cat > "$SLURM_CONF" << END
ClusterName=toy
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/ctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/ctld.log
SlurmdLogFile=$folder/slurmd.%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
KillWait=5
MinJobAge=3600
SchedulerParameters=batch_sched_delay=1,sched_interval=5
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=17001 CPUs=$cpus RealMemory=1000
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=17002 CPUs=$cpus RealMemory=1000
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=60 State=UP
END
slurmctld -f "$SLURM_CONF"
for node in n1 n2; do slurmd -N "$node" -f "$SLURM_CONF"; done
for _ in $(seq 100); do
  [ "$(sinfo -h -o %T -N | grep -c idle)" = 2 ] && exit
  sleep 0.2
done
sinfo
exit 1
