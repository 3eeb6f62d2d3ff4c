#!/bin/bash
# Train on two hosts with four GPUs each:  KERAS_BACKEND=jax sbatch slurm.sh   (or torch)
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --requeue
set -euo pipefail

devices=4  # per host
first_host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
training=(
    keras-bahdanau train corpus
    --validation-source dev.en --validation-target dev.de
    --updates 200000 --every 5000
    --devices $((SLURM_NNODES * devices)) --output run --resume
)

if [ "$KERAS_BACKEND" = torch ]; then
    launch=(
        torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$devices"
        --rdzv-backend c10d --rdzv-endpoint "$first_host:29500" --rdzv-id "$SLURM_JOB_ID" --no-python
    )
    srun --kill-on-bad-exit "${launch[@]}" "${training[@]}"
else
    export KERAS_DISTRIBUTION_JOB_ADDRESSES=$first_host:29500
    export KERAS_DISTRIBUTION_NUM_PROCESSES=$SLURM_NNODES
    # Slurm sets SLURM_PROCID in each task, so the inner shell must expand it.
    # shellcheck disable=SC2016
    srun --kill-on-bad-exit \
        bash -c 'KERAS_DISTRIBUTION_PROCESS_ID=$SLURM_PROCID exec "$@"' bash "${training[@]}"
fi
