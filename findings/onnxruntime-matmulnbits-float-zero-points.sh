#!/usr/bin/env bash
# ONNX Runtime 1.31.1, MatMulNBits in 4 bits on the processor: the operator takes zero points packed
# or in float32 (GGUF's Q4_1 and HQQ have such offsets). In float32 the same product of the same
# weights takes some 25 times longer, as if the whole matrix were made dense at every call,
# `accuracy_level` counts no more, and nothing warns.
#
# Output seen (x86-64 with AVX2, one thread; 1 x 576 by 576 x 1536, blocks of 32; error relative):
#   accuracy_level 0: zero points uint8 0.04 ms, error below 1e-5; float 0.98 ms, error below 1e-5
#   accuracy_level 4: zero points uint8 0.01 ms, error above 1e-3; float 0.98 ms, error below 1e-5
# What helps: no zero points, and besides a product of each block's sum of inputs with its offset.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q onnxruntime==1.31.1 onnx==1.23.2
"$place/venv/bin/python" - <<'PYTHON' 2> "$place/log" || { cat "$place/log"; exit 1; }
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ROWS, COLUMNS, BLOCK = 1536, 576, 32
BLOCKS = COLUMNS // BLOCK
draw = np.random.default_rng(0)
codes = draw.integers(0, 256, (ROWS, BLOCKS, BLOCK // 2), np.uint8)
scales = draw.uniform(0.01, 0.02, (ROWS, BLOCKS)).astype(np.float32)
x = draw.normal(size=(1, COLUMNS)).astype(np.float32)
ZEROS = {  # all of them 7
    "uint8": np.full((ROWS, BLOCKS // 2), 0x77, np.uint8),
    "float": np.full((ROWS, BLOCKS), 7, np.float32),
}


def session(zero_points, level):
    parts = {"codes": codes, "scales": scales, "zeros": zero_points}
    how = {"K": COLUMNS, "N": ROWS, "bits": 4, "block_size": BLOCK, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", ["x", *parts], ["y"], domain="com.microsoft", **how)
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, COLUMNS])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, ROWS])]
    fixed = [numpy_helper.from_array(part, name) for name, part in parts.items()]
    graph = helper.make_graph([node], "product", given, made, fixed)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def milliseconds(run):
    times = []
    for _ in range(300):
        began = time.perf_counter()
        run.run(None, {"x": x})
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


four_bits = np.stack([codes & 15, codes >> 4], -1).reshape(ROWS, COLUMNS).astype(np.float64)
exact = x @ ((four_bits - 7) * np.repeat(scales, BLOCK, 1)).T
for level in (0, 4):
    spent, said = {}, []
    for name, zero_points in ZEROS.items():
        run = session(zero_points, level)
        error = np.abs(run.run(None, {"x": x})[0] - exact).max() / np.abs(exact).max()
        is_exact, spent[name] = error < 1e-5, milliseconds(run)
        told = "error below 1e-5" if is_exact else "error above 1e-3"
        said.append(f"{name} {spent[name]:.2f} ms, {told}")
        assert is_exact == (level == 0 or name == "float"), (level, name, error)
        assert is_exact or error > 1e-3, error
    print(f"accuracy_level {level}: zero points {'; '.join(said)}")
    assert spent["float"] > 5 * spent["uint8"], "float zero points are quick now"
PYTHON
if [ -s "$place/log" ]; then cat "$place/log"; echo "there is a warning now"; exit 1; fi
