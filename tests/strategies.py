"""Hypothesis strategies that several properties share."""

import numpy as np
from hypothesis import strategies as st

# From all zeros over the smallest numbers to large ones; far from float32's end.
MAGNITUDES = (0.0, 1e-45, 1e-38, 1e-30, 1e-4, 0.02, 1.0, 1e4, 1e30)


@st.composite
def matrices(draw: st.DrawFn, column_step: int = 1, max_rows: int = 6) -> np.ndarray:
    """Finite float32 matrices whose rows may differ wildly in size; zero rows included.

    Args:
        draw: Given by hypothesis.
        column_step: The number of columns is a multiple of it.
        max_rows: At most so many rows.
    """
    rows = draw(st.integers(0, max_rows))
    columns = column_step * draw(st.integers(1, max(1, 200 // column_step)))
    generator = np.random.Generator(np.random.PCG64(draw(st.integers(0, 2**32 - 1))))
    sizes = [[draw(st.sampled_from(MAGNITUDES))] for _ in range(rows)]
    values = generator.standard_normal((rows, columns), dtype=np.float32)
    kept = generator.random((rows, columns)) < draw(st.sampled_from((0.1, 0.9, 1.0)))
    return (values * kept * np.array(sizes, np.float32).reshape(rows, 1)).astype(np.float32)
