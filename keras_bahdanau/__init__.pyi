from . import (
    callbacks as callbacks,
)
from . import (
    data as data,
)
from . import (
    distribution as distribution,
)
from . import (
    initializers as initializers,
)
from . import (
    layers as layers,
)
from . import (
    losses as losses,
)
from . import (
    metrics as metrics,
)
from . import (
    models as models,
)
from . import (
    optimizers as optimizers,
)
from . import (
    plot as plot,
)
from . import (
    search as search,
)
from . import (
    text as text,
)
from . import (
    toolkits as toolkits,
)
from . import (
    training as training,
)
from .artifacts import (
    Translator as Translator,
)
from .artifacts import (
    export as export,
)
from .callbacks import (
    RunCheckpoint as RunCheckpoint,
)
from .callbacks import (
    TranslationScore as TranslationScore,
)
from .data import (
    PreparedDataset as PreparedDataset,
)
from .data import (
    TranslationDataset as TranslationDataset,
)
from .data import (
    prepare as prepare,
)
from .layers import (
    AttentionPooling as AttentionPooling,
)
from .layers import (
    AttentiveDecoder as AttentiveDecoder,
)
from .layers import (
    BahdanauAttention as BahdanauAttention,
)
from .layers import (
    BidirectionalEncoder as BidirectionalEncoder,
)
from .layers import (
    Bridge as Bridge,
)
from .layers import (
    CoverageAttention as CoverageAttention,
)
from .layers import (
    DeepOutput as DeepOutput,
)
from .layers import (
    FixedContext as FixedContext,
)
from .layers import (
    LocationSensitiveAttention as LocationSensitiveAttention,
)
from .layers import (
    LuongAttention as LuongAttention,
)
from .layers import (
    MonotonicAttention as MonotonicAttention,
)
from .layers import (
    MultiSourceAttention as MultiSourceAttention,
)
from .layers import (
    check_attention as check_attention,
)
from .losses import (
    TokenCrossentropy as TokenCrossentropy,
)
from .metrics import (
    Perplexity as Perplexity,
)
from .metrics import (
    TokenAccuracy as TokenAccuracy,
)
from .models import (
    Ensemble as Ensemble,
)
from .models import (
    RNNEncoderDecoder as RNNEncoderDecoder,
)
from .models import (
    RNNSearch as RNNSearch,
)
from .models import (
    Seq2Seq as Seq2Seq,
)
from .models import (
    Shortlist as Shortlist,
)
from .plot import (
    plot_alignment as plot_alignment,
)
from .search import (
    BeamSearch as BeamSearch,
)
from .search import (
    GreedySearch as GreedySearch,
)
from .search import (
    Sampling as Sampling,
)
from .text import (
    Tokenizer as Tokenizer,
)
from .training import (
    TrainingOptions as TrainingOptions,
)
from .training import (
    load_best as load_best,
)
from .training import (
    train as train,
)
from .training import (
    train_seeds as train_seeds,
)
