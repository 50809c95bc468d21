#!/usr/bin/env bash
# onnxruntime 1.31.1, `quantize_static`: the `beta` of a Gemm (beta * bias is added) is lost or turned
# over. The bias's scale is multiplied by beta, which leaves the bias as it was, and beta is set to
# 1: so the model in QDQ form adds the bias once, whatever beta is. Run with the usual optimizations,
# and in QOperator form anyhow, the bias's integers are used under the scale without beta: what is
# added is bias / beta. Beta 2 gives a quarter of what it should. QOperator form also multiplies the
# bias by `alpha`. No warning. `torch.addmm(bias, x, w, beta=...)` is exported as such a Gemm.
#
# Seen with onnxruntime 1.31.1, onnx 1.23.2 (what is added, in units of the bias):
#   alpha 1, beta 1: model 1.0, QDQ 1.0, QDQ optimized 1.0, QOperator 1.0
#   alpha 1, beta 2: model 2.0, QDQ 1.0, QDQ optimized 0.5, QOperator 0.5
#   alpha 1, beta 0.5: model 0.5, QDQ 1.0, QDQ optimized 2.0, QOperator 2.0
#   alpha 0.5, beta 1: model 1.0, QDQ 1.0, QDQ optimized 1.0, QOperator 0.5
# What helps: multiply the bias by beta in the model, or quantize dynamically (beta is kept there).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.31.1 onnx==1.23.2
cd "$folder"
venv/bin/python - <<'PYTHON' 2> log || { cat log; exit 1; }
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)

draw = np.random.default_rng(0)
WEIGHT = draw.uniform(-1, 1, (4, 4)).astype(np.float32)
BIAS = np.float32([1.0, -1.0, 1.5, -1.5])
# Inputs in pairs of opposite signs: the mean of the outputs is what is added to each. The last two
# are large, so that outputs of all the variants lie within the calibrated range.
INPUTS = draw.uniform(-1, 1, (64, 4)).astype(np.float32)
INPUTS[-1] = 8 * np.sign(WEIGHT[:, 0])
INPUTS[-2] = 8 * np.sign(WEIGHT[:, 1])
INPUTS[-3] = 8 * np.sign(WEIGHT[:, 2])
INPUTS[-4] = 8 * np.sign(WEIGHT[:, 3])
INPUTS = np.concatenate([INPUTS, -INPUTS])


class Inputs(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": INPUTS}]

    def get_next(self):
        return self.left.pop() if self.left else None


def write(alpha, beta):
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], alpha=alpha, beta=beta)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 4])],
        [numpy_helper.from_array(WEIGHT, "weight"), numpy_helper.from_array(BIAS, "bias")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), "model.onnx")


def added(name, optimized=True):
    """How often the bias is added."""
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(name, options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"x": INPUTS})[0]
    inner = np.abs(INPUTS).max(axis=1) <= 1
    return round(float((outputs[inner].mean(0) / BIAS).mean()), 1)


def static(kind):
    quantize_static("model.onnx", "small.onnx", Inputs(), quant_format=kind)
    return "small.onnx"


for alpha, beta in ((1.0, 1.0), (1.0, 2.0), (1.0, 0.5), (0.5, 1.0)):
    write(alpha, beta)
    seen = {"model": added("model.onnx")}
    seen["QDQ"] = added(static(QuantFormat.QDQ), optimized=False)
    seen["QDQ optimized"] = added("small.onnx")
    seen["QOperator"] = added(static(QuantFormat.QOperator))
    told = ", ".join(f"{name} {times}" for name, times in seen.items())
    print(f"alpha {alpha:g}, beta {beta:g}: {told}")
    assert seen["model"] == beta
    assert seen["QDQ"] == 1.0 and seen["QDQ optimized"] == 1 / beta, "beta is kept now"
    assert seen["QOperator"] == alpha / beta, "alpha and beta are kept now"
    quantize_dynamic("model.onnx", "small.onnx")
    assert added("small.onnx") == beta, "this does not help"
PYTHON
if grep -i "alpha\|beta" log; then echo "there is a warning now"; exit 1; fi
