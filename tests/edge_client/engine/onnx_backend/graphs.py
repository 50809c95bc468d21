"""Every graph of the onnx engine, in every variant."""

from itertools import product

from smidgen.edge_client.engine.onnx_backend import graphs
from smidgen.edge_client.engine.onnx_backend.model import Graph

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")
BOTH = (False, True)


def every_graph() -> dict[str, Graph]:
    """Graphs by the name of the function that makes each, and its arguments."""
    found = {
        "lora_gradient": graphs.lora_gradient(2.0),
        "weight_gradient": graphs.weight_gradient(),
        "bias_gradient": graphs.bias_gradient(),
        "norm": graphs.norm(1e-5),
        "norm_back": graphs.norm_back(1e-12, 24),
        "norm_back has_rest": graphs.norm_back(1e-12, 24, has_rest=True),
        "norm is_rms": graphs.norm(1e-5, is_rms=True),
        "norm_back is_rms": graphs.norm_back(1e-12, 24, is_rms=True),
        "rotary": graphs.rotary(6, 6, 24),
        "dequantize": graphs.dequantize(),
        "widen": graphs.widen(),
        "narrow": graphs.narrow(),
    }
    for make in (graphs.linear, graphs.linear_int8, graphs.linear_back):
        for has_lora, has_rest in product(BOTH, BOTH):
            name = f"{make.__name__} {has_lora=} {has_rest=}"
            found[name] = make(has_lora, has_rest, 4.0)
    for kind in ACTIVATIONS:
        found[f"activation {kind}"] = graphs.activation(kind)
        found[f"activation_back {kind}"] = graphs.activation_back(kind)
        found[f"gate {kind}"] = graphs.gate(kind)
        found[f"gate_back {kind}"] = graphs.gate_back(kind)
    for has_mask, kv_width in product(BOTH, (24, 12)):
        name = f"{has_mask=} {kv_width=}"
        found[f"attention {name}"] = graphs.attention(6, 24, has_mask, kv_width)
        found[f"attention_back {name}"] = graphs.attention_back(6, 24, has_mask, kv_width)
    return found
