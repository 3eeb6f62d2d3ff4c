from .averaging import average_checkpoints as average_checkpoints
from .length_penalty import length_penalty_scores as length_penalty_scores
from .options import TrainingOptions as TrainingOptions
from .paper import PaperTraining as PaperTraining
from .paper import paper_training as paper_training
from .run import load_best as load_best
from .run import train as train
from .run import train_seeds as train_seeds
