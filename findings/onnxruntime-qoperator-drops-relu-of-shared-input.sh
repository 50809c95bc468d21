#!/usr/bin/env bash
# onnxruntime 1.31.1, `quantize_static` with quant_format QOperator: a Relu whose input another node
# reads too, as beside a skip connection, is taken out, and negative values go on in its place. The
# tool leaves a Relu out since its input can be quantized in the range of its output, from 0 on; but
# it narrows the input's range only where nobody else reads it, and leaves the Relu out anyway. No
# warning. QDQ form keeps such a Relu.
#
# Seen with onnxruntime 1.31.1, onnx 1.23.2 (smallest value behind the Relu):
#   input read by the Relu alone: model 0.0, QOperator 0.0, QDQ 0.0
#   input read by another node too: model 0.0, QOperator -6.4, QDQ 0.0
# What helps: QDQ form, or extra_options={"ActivationSymmetric": True} with signed activations.
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
    QuantType,
    quantize_static,
)

draw = np.random.default_rng(0)
INPUTS = draw.normal(0, 1, (64, 4)).astype(np.float32)
ARRAYS = {"weight": draw.normal(0, 1, (4, 4)).astype(np.float32)}
ARRAYS |= {f"same{width}": np.eye(width, dtype=np.float32) for width in (4, 8)}


class Inputs(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": INPUTS}]

    def get_next(self):
        return self.left.pop() if self.left else None


def write(is_shared):
    """The first four outputs are those of the Relu; the last four, if any, its inputs."""
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["scores"]),
        helper.make_node("Relu", ["scores"], ["positive"]),
    ]
    if is_shared:
        nodes.append(helper.make_node("Concat", ["positive", "scores"], ["both"], axis=1))
    last = ["both", "same8"] if is_shared else ["positive", "same4"]
    nodes.append(helper.make_node("MatMul", last, ["y"]))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 8 if is_shared else 4])],
        [numpy_helper.from_array(ARRAYS[name], name) for name in ("weight", last[1])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), "model.onnx")


def smallest(name):
    session = onnxruntime.InferenceSession(name, providers=["CPUExecutionProvider"])
    return round(float(session.run(None, {"x": INPUTS})[0][:, :4].min()), 1) + 0.0


def static(kind, **options):
    quantize_static("model.onnx", "small.onnx", Inputs(), quant_format=kind, **options)
    return smallest("small.onnx")


for is_shared in (False, True):
    write(is_shared)
    model, small = smallest("model.onnx"), static(QuantFormat.QOperator)
    pairs = static(QuantFormat.QDQ)
    by = "another node too" if is_shared else "the Relu alone"
    print(f"input read by {by}: model {model}, QOperator {small}, QDQ {pairs}")
    assert model == pairs == 0.0
    assert (small < -1) if is_shared else (small == 0.0), "the Relu is kept now"
    helped = static(
        QuantFormat.QOperator,
        activation_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": True},
    )
    assert helped == 0.0, "this does not help"
PYTHON
if grep -i "relu" log; then echo "there is a warning now"; exit 1; fi
