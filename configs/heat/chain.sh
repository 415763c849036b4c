#!/bin/bash
#SBATCH --job-name=heat --nodes=1-2 --exclusive --mem=3G --time=01:00:00
#SBATCH --signal=B:USR1@120 --requeue --open-mode=append
# The study of one-allocation.sh in as many allocations as it takes, each of one or two whole nodes. Two minutes before
# one is over, Slurm sends USR1 to this script: the study saves a checkpoint and leaves with 75, and the job is queued
# again. `sbatch` hands on the environment of your shell. Where it does not, load the modules and activate the venv here.
trap 'kill -USR1 $!' USR1
stream-launcher --config one-allocation.json "$@" &
wait $!
code=$?
if [ $code -gt 128 ]; then # The signal has come, and the study leaves.
    wait $!
    code=$?
fi
# 7: a rank or a node was lost, and the launcher could not start the server again here.
if { [ $code = 75 ] || [ $code = 7 ]; } && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
