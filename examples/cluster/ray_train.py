"""Trains on the workers of a Ray cluster; where one is lost, all begin again after the checkpoint.

    pip install "keras-bahdanau[torch,text]" "ray[train]"
    python examples/cluster/ray_train.py options.json /shared/run --workers 4 --gpu

`options.json` holds options of training, as a run's own does. Every worker must see the texts and
the run's folder.
"""

import argparse
import os
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def work(given):
    """What each worker does, in a process group that Ray has made."""
    os.environ["KERAS_BACKEND"] = "torch"
    from keras_bahdanau import TrainingOptions, train

    options = TrainingOptions.from_file(given["options"], devices=given["workers"])
    train(options, given["output"], resume=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("options", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    given = parser.parse_args()
    options, output = given.options.absolute(), given.output.absolute()
    ray.init()
    TorchTrainer(
        work,
        train_loop_config={"options": options, "output": output, "workers": given.workers},
        scaling_config=ScalingConfig(num_workers=given.workers, use_gpu=given.gpu),
        run_config=RunConfig(
            name=output.name,
            storage_path=str(output.parent / "ray"),
            failure_config=FailureConfig(max_failures=20),
        ),
    ).fit()


if __name__ == "__main__":
    main()
