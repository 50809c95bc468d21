"""What `python -m benchmarks labelling` refuses."""

import pytest

pytest.importorskip("torch")

from tests import command_line


@pytest.mark.parametrize(
    ("option", "said"),
    [("--engine", "onnx, torch or torch-float32 is expected"), ("--dataset", "no data set 'tpu'")],
)
def test_what_is_not_known_is_refused_before_the_work(option: str, said: str) -> None:
    done = command_line.benchmarks("labelling", option, "tpu", "--base", "nosuch")
    assert done.exit_code == 2 and said in done.stderr and "nosuch" not in done.output
