"""Chunks: how much an engine handles at once, which is what the formulas count.

The engines read these numbers here and the formulas of `torch_memory` and `onnx_memory` do too, so
that a chunk cannot change without its prediction. nf4's block is `bases.quantization.BLOCK`.
"""

SCORES = 1 << 20  # attention scores, in elements; at least one text's
WINDOW_QUERIES = 128  # tokens of a text whose attention is computed together, where it is in parts
LONG_TEXT = 512  # tokens above which a text's attention is in parts
TABLE_ROWS = 32  # rows of the word table, read before the pages around them are given back
WORD_ROWS = 2048  # rows of a masked model's head, where every word is an answer
HEAD_ROWS = 8192  # rows of a decoder's head, whose logits are held together
PASS_ELEMENTS = 1 << 19  # elements of a pass over states; what it holds stays in a core's cache


def window_of(tokens: int, window: int | None) -> int | None:
    """The window by which a text's attention is computed in parts; None: all at once.

    A window that sees all tokens of a longer text has every key for each part of its queries.

    Args:
        tokens: Of the text, queries and keys alike.
        window: Tokens that are seen on either side of each; None: all.
    """
    if window is not None and tokens > window + 1:
        return window
    return tokens if tokens > LONG_TEXT else None


def window_blocks(tokens: int, window: int) -> list[tuple[slice, slice]]:
    """Queries of one text that are computed together, and the keys that they see."""
    starts = range(0, tokens, WINDOW_QUERIES)
    ends = ((start, min(start + WINDOW_QUERIES, tokens)) for start in starts)
    return [(slice(a, b), slice(max(0, a - window), min(tokens, b + window))) for a, b in ends]
