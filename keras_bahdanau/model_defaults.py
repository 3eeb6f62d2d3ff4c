"""Defaults of the models that `train` and `RNNSearch.from_tokenizer` build."""

ARCHITECTURE = {
    "units": 256,
    "embedding_dim": 256,
    "attention_units": 256,
    "tie_embeddings": True,
    "join_embeddings": True,
    "encoder_layers": 1,
    "encoder_dropout": 0.0,
    "conditional": True,
    "layer_normalization": False,
    "copy": False,
}
DROPOUTS = (0.2, 0.3, 0.4)  # of embeddings, of annotations and before the output layer
