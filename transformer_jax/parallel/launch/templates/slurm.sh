#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
{resources}
#SBATCH --time={time}
#SBATCH --signal=USR1@{warning}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir={folder}
#SBATCH --output=%x-%j.log
# {warning} s before the time limit every task gets SIGUSR1, saves its state and ends with 75. After
# that, and up to {restarts} times after a crash, the job is queued again and goes on from its newest
# checkpoint. Exit codes 2 to 5 are mistakes that a restart does not mend.
set -uo pipefail
export PATH={bin}:$PATH JAX_PLATFORMS={platform}
crashes={name}-$SLURM_JOB_ID.crashes
srun --kill-on-bad-exit=1 --cpu-bind=none --label {command}
code=$?
case $code in
  0 | 2 | 3 | 4 | 5) ;;
  75)
    echo "saved: queued again"
    scontrol requeue "$SLURM_JOB_ID"
    ;;
  *)
    echo "exit code $code" >> "$crashes"
    if [ "$(wc -l < "$crashes")" -le {restarts} ]; then
      echo "exit code $code: queued again"
      scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit $code
