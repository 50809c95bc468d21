"""Chunks: how much an engine handles at once, which is what the formulas count.

The engines read these numbers here and the formulas of `torch_memory` and `onnx_memory` do too, so
that a chunk cannot change without its prediction. nf4's block is `bases.quantization.BLOCK`.
"""

SCORES = 1 << 20  # attention scores, in elements; at least one text's
TABLE_ROWS = 32  # rows of the word table, read before the pages around them are given back
WORD_ROWS = 2048  # rows of a masked model's head, where every word is an answer
HEAD_ROWS = 8192  # rows of a decoder's head, whose logits are held together
PASS_ELEMENTS = 1 << 19  # elements of a pass over states; what it holds stays in a core's cache
