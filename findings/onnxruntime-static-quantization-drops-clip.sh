#!/usr/bin/env bash
# onnxruntime 1.31.1, `quantize_static` in its usual form (QDQ, asymmetric activations): a Clip behind
# a quantized node is taken out, since the range of the quantized values does its work. That range
# always includes 0. So a Clip whose bounds do not, such as a floor of 0.5 under what is divided by
# later, is lost: the quantized model gives values down to 0, below any that the model can give. No
# warning. Bounds with 0 between them hold, and so do all with symmetric activations.
#
# Seen with onnxruntime 1.31.1, onnx 1.23.2 (smallest and largest output):
#   Clip 0.0 to 2.0: model 0.0 to 2.0, quantized 0.0 to 2.0
#   Clip 0.5 to 2.0: model 0.5 to 2.0, quantized 0.0 to 2.0
#   Clip -2.0 to -0.5: model -2.0 to -0.5, quantized -2.0 to 0.0
# What helps: extra_options={"QDQKeepRemovableActivations": True}.
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
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

draw = np.random.default_rng(0)
WEIGHT = draw.normal(0, 1, (4, 4)).astype(np.float32)
INPUTS = draw.normal(0, 1, (64, 4)).astype(np.float32)


class Inputs(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": INPUTS}]

    def get_next(self):
        return self.left.pop() if self.left else None


def write(low, high):
    arrays = {"weight": WEIGHT, "low": np.float32(low), "high": np.float32(high)}
    arrays["same"] = np.eye(4, dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["scores"]),
            helper.make_node("Clip", ["scores", "low", "high"], ["clipped"]),
            helper.make_node("MatMul", ["clipped", "same"], ["y"]),
        ],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), "model.onnx")


def bounds(name):
    session = onnxruntime.InferenceSession(name, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"x": INPUTS})[0]
    return round(float(outputs.min()), 1) + 0.0, round(float(outputs.max()), 1) + 0.0


def quantized(**options):
    quantize_static(
        "model.onnx",
        "small.onnx",
        Inputs(),
        quant_format=QuantFormat.QDQ,
        extra_options=options,
    )
    return bounds("small.onnx")


for low, high in ((0.0, 2.0), (0.5, 2.0), (-2.0, -0.5)):
    write(low, high)
    model, small = bounds("model.onnx"), quantized()
    told = [f"{first} to {last}" for first, last in (model, small)]
    print(f"Clip {low} to {high}: model {told[0]}, quantized {told[1]}")
    assert model == (low, high)
    assert small == (min(low, 0.0), max(high, 0.0)), "the Clip is kept now"
    assert quantized(QDQKeepRemovableActivations=True) == (low, high), "this does not help"
PYTHON
if grep -i "clip" log; then echo "there is a warning now"; exit 1; fi
