"""Pieces of work and plans for the planner's tests: real shapes, and hypothesis' own."""

from dataclasses import replace

from hypothesis import strategies as st

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.planning.plan import Workload
from smidgen.edge_client.planning.planner import Option, options
from smidgen.edge_client.planning.step_cost import Rates, nominal_rates

MIB = 1 << 20
RUNTIME = 240 * MIB
LARGE = Shape(
    architecture="roberta",
    layers=24,
    stored_layers=24,
    hidden=1024,
    heads=16,
    kv_heads=16,
    head_dim=64,
    intermediate=4096,
    vocabulary=50265,
    embedding=1024,
    positions=512,
    activation="gelu",
    norm_eps=1e-5,
    pad_id=1,
)
SMALL = replace(LARGE, layers=2, stored_layers=2, hidden=64, heads=2, kv_heads=2, head_dim=32)
SMALL = replace(SMALL, intermediate=256, vocabulary=5000, embedding=64)
REPEATED = replace(SMALL, architecture="albert", layers=6, stored_layers=1, embedding=32)
DECODER = replace(SMALL, architecture="llama", is_decoder=True, kv_heads=1, rope_theta=1e4)
LOCAL = replace(SMALL, architecture="modernbert", layers=5, stored_layers=5, rope_theta=1e4)
LOCAL = replace(LOCAL, window=16, local_layers=(1, 2, 4), local_rope_theta=1e3, biased=())
AVX512 = nominal_rates({"sse2", "avx2", "avx512f", "avx512_bf16"}, ("bfloat16",), 2)
NEON = nominal_rates({"asimd"}, (), 4)
ADAPTERS = (
    "lora:8",
    "lora:2@q,k,v,o,up,down",
    "prompt:16",
    "bias",
    "head",
    "lora:4+head",
    "prompt:9+head",
)


def is_answerable(work: Workload) -> bool:
    """Words are asked for without a head, tags with one; of a decoder words alone."""
    if work.shape.is_decoder:
        return bool(work.masked) and not work.spec.head and not work.is_of_words
    return not (work.masked and work.spec.head) and (work.spec.head or not work.is_of_words)


def works_of(engine: str) -> st.SearchStrategy[Workload]:
    return st.builds(
        Workload,
        st.sampled_from((LARGE, SMALL, REPEATED, LOCAL, DECODER)),
        st.sampled_from((4, 8, 16, 32)),
        st.sampled_from(ADAPTERS).map(parse_adapter),
        st.integers(1, 33),
        st.integers(8, 600),
        num_labels=st.sampled_from((2, 9, 2001)),
        engine=st.just(engine),
        masked=st.sampled_from((0, 6)),
        is_of_words=st.booleans(),
    ).filter(is_answerable)


WORKS, ONNX_WORKS = works_of("torch"), works_of("onnx")
RATES = st.sampled_from((AVX512, NEON))


def large(adapter: str = "lora:8", batch: int = 4, tokens: int = 256, bits: int = 4) -> Workload:
    """RoBERTa-large's work."""
    return Workload(LARGE, bits, parse_adapter(adapter), batch, tokens)


def options_of(work: Workload, rates: Rates = AVX512) -> list[Option]:
    """A piece of work's options on a plain device."""
    return options(work, RUNTIME, rates)
