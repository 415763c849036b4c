#!/bin/bash
#SBATCH --job-name=heat-server --nodes=1 --ntasks=1 --cpus-per-task=2 --mem=3G --time=01:00:00
# `sbatch` hands on the environment of your shell. Where it does not, load the modules and activate the venv here.
exec stream-launcher --config job-each.json --time-limit 00:55:00 "$@"
