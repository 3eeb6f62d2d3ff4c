"""Train on the workers of a Ray cluster. If a worker fails, all resume from the last checkpoint.

    pip install ".[torch,text]" "ray[train]"
    python examples/cluster/ray_train.py options.json /shared/run --workers 4 --gpu

`options.json` contains training options, like the file of that name in a run folder. Every worker
must have access to the texts and to the run folder.
"""

import argparse
import os
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_worker(config):
    """Run in each worker, in a process group that Ray has initialized."""
    os.environ["KERAS_BACKEND"] = "torch"
    from keras_bahdanau import TrainingOptions, train

    options = TrainingOptions.from_file(config["options"], devices=config["workers"])
    train(options, config["output"], resume=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("options", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="use one GPU per worker")
    args = parser.parse_args()
    options, output = args.options.absolute(), args.output.absolute()
    ray.init()
    TorchTrainer(
        train_worker,
        train_loop_config={"options": options, "output": output, "workers": args.workers},
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.gpu),
        run_config=RunConfig(
            name=output.name,
            storage_path=str(output.parent / "ray"),
            failure_config=FailureConfig(max_failures=20),
        ),
    ).fit()


if __name__ == "__main__":
    main()
