"""The bill of materials of the wheel, `sbom.cdx.json`, in CycloneDX 1.6: `python scripts/sbom.py`.

Contained are the source and the embedded base; the device's packages are those it is tested with.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def component(kind: str, name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "bom-ref": f"{name}@{version}", "name": name, "version": version, **more}


def bill() -> dict[str, Any]:
    """Smidgen, the two parts of the embedded base, and what the device needs at its pins."""
    version = re.findall(r'__version__ = "(.+)"', (ROOT / "smidgen/__init__.py").read_text())[0]
    pins = re.findall(
        r"^([\w.-]+)==([^\s;\\]+)", (ROOT / "constraints/device.txt").read_text(), re.MULTILINE
    )
    ours = {"license": {"id": "Apache-2.0"}}
    texts = {"license": {"name": "Learned from texts, most of them under CC BY-SA: see NOTICE"}}
    smidgen = component(
        "library", "smidgen", version, purl=f"pkg:pypi/smidgen@{version}", licenses=[ours]
    )
    parts = [
        component("library", name, pin, scope="required", purl=f"pkg:pypi/{name}@{pin}")
        for name, pin in pins
    ]
    for kind, file in (("machine-learning-model", "model.safetensors"), ("data", "tokenizer.json")):
        body = (ROOT / "edge_client/embedded/base" / file).read_bytes()
        hashes = [{"alg": "SHA-256", "content": hashlib.sha256(body).hexdigest()}]
        name = f"embedded base, {file}"
        parts.append(component(kind, name, version, licenses=[ours, texts], hashes=hashes))
    needs = {"ref": smidgen["bom-ref"], "dependsOn": [one["bom-ref"] for one in parts]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": smidgen},
        "components": parts,
        "dependencies": [needs],
    }


if __name__ == "__main__":
    (ROOT / "sbom.cdx.json").write_text(json.dumps(bill(), indent=1) + "\n")
