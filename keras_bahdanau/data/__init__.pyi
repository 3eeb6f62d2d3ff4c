from .bpe_dropout import BPEDropout as BPEDropout
from .corpus import PreparedCorpus as PreparedCorpus
from .options import PrepareOptions as PrepareOptions
from .preparation import TextFormat as TextFormat
from .preparation import prepare as prepare
from .prepared_dataset import PreparedDataset as PreparedDataset
from .translation_dataset import TranslationDataset as TranslationDataset
