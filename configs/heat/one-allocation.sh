#!/bin/bash
#SBATCH --job-name=heat --nodes=2 --ntasks-per-node=3 --mem=3G --time=01:00:00
# `sbatch` hands on the environment of your shell. Where it does not, load the modules and activate the venv here.
exec stream-launcher --config one-allocation.json --time-limit 00:55:00 "$@"
