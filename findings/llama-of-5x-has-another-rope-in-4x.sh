#!/usr/bin/env bash
# A Llama or Qwen2 whose config.json transformers 5.23.0 wrote has its rotary base in
# `rope_parameters` alone. transformers 4.57.6 opens that file without a word, knows no such key,
# and computes with its default, 10000: other angles, other logits.
#
# Seen: 5.23.0 wrote llama {'rope_type': 'default', 'rope_theta': 1000000.0}
#       4.57.6 reads llama rope_theta 10000.0
#       4.57.6 reads qwen2 rope_theta 10000.0
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
for version in 5.23.0 4.57.6; do
  python3 -m venv "$place/$version"
  "$place/$version/bin/pip" install -q "transformers==$version"
done
cat > "$place/write.py" <<'PYTHON'
import sys, transformers
for family in ("llama", "qwen2"):
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    config = transformers.AutoConfig.for_model(family, rope_parameters=rope)
    config.save_pretrained(f"{sys.argv[1]}/{family}")
    print(transformers.__version__, "wrote", family, config.rope_parameters)
PYTHON
cat > "$place/read.py" <<'PYTHON'
import sys, transformers
for family in ("llama", "qwen2"):
    config = transformers.AutoConfig.from_pretrained(f"{sys.argv[1]}/{family}")
    print(transformers.__version__, "reads", family, "rope_theta", config.rope_theta)
    assert config.rope_theta == 10000.0, "this version reads what the newer one writes"
PYTHON
"$place/5.23.0/bin/python" "$place/write.py" "$place" 2> /dev/null
"$place/4.57.6/bin/python" "$place/read.py" "$place" 2> "$place/said"
grep -qi "rope" "$place/said" && { echo "it says so now: $(cat "$place/said")"; exit 1; }
echo "transformers 4.57.6 says nothing about it"
