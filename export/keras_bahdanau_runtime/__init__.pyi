from .calibration import Calibration as Calibration
from .errors import ArtifactError as ArtifactError
from .errors import CorruptArtifactError as CorruptArtifactError
from .errors import LimitError as LimitError
from .errors import MissingDependencyError as MissingDependencyError
from .errors import ParityError as ParityError
from .errors import PrecisionError as PrecisionError
from .errors import RunError as RunError
from .errors import UnsupportedArtifactError as UnsupportedArtifactError
from .errors import UnsupportedModelError as UnsupportedModelError
from .scoring import Scorer as Scorer
from .scoring import TargetScore as TargetScore
from .search_options import SearchOptions as SearchOptions
from .stepper import Stepper as Stepper
from .text.tokenizer import Tokenizer as Tokenizer
from .translation import Alternative as Alternative
from .translation import Translation as Translation
from .translator import Translator as Translator

__version__: str
