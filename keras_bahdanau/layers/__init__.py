"""The layers: attention, encoder, decoder and what they are made of."""
