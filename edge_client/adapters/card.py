"""Model card of an exported adapter: Markdown with the Hugging Face hub's front matter.

It says only what the run's owner stated or the coordinator counted; nothing is known there of a
device's texts.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smidgen.edge_client.adapters.exports import ADAPTER
from smidgen.edge_client.adapters.spec import AdapterSpec, has_peft_form, parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED, Base
from smidgen.edge_client.bases.gguf.header import GgufFile, is_gguf
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import perplexity
from smidgen.edge_client.tasks.task import Task

README = "README.md"
SNIPPET = Path(__file__).with_name("with_peft.py.txt")  # a text here, and never imported
CAUSAL = """```python
from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained(".")
```
"""
GGUF_BASE = """With PEFT (`pip install peft transformers gguf`), from this folder, with the base's
GGUF file in its folder `base`, where `smidgen coordinator export --with-base copied` puts it, and
which transformers makes dense. Of its configuration transformers leaves out scaled and partial
rotary positions among others (5.23), so that it stands here:

```python
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

config = {config}
model = AutoModelForCausalLM.from_pretrained(
    "base", gguf_file="{file}", config=config, dtype="float32"
)
model = PeftModel.from_pretrained(model, ".")
```

PEFT's auto classes do not find a GGUF file: for them, and where transformers does not read the
file's architecture, name the Hugging Face folder of the same model as `base_model_name_or_path` in
`adapter_config.json`. Token ids are those of llama.cpp; take them from it, or from that folder's
`tokenizer.json`, since transformers' own reading of a GGUF's tokenizer may split digits, control
words and the space before a text otherwise.
"""
FROM_FOLDER = """AutoConfig.from_pretrained("the model's Hugging Face folder")"""
RIDGE_NOTE = """Beside LoRA there is ridge regression on the base's mean token states
(`ridge.safetensors`), whose scores are added to LoRA's; PEFT alone does not read it. Its round is
one of the run's, in which LoRA was not trained.
"""
LLAMA = f"""With llama.cpp, beside the base's GGUF file, here `base.gguf`:

    llama-cli -m base.gguf --lora {ADAPTER}

With ollama, by these two lines of a Modelfile:

    FROM ./base.gguf
    ADAPTER ./{ADAPTER}
"""
MERGED_OLLAMA = """With ollama, where it imports the architecture (Llama, Gemma, Phi-3), by one line
of a Modelfile in this folder:

    FROM .

With llama.cpp, by its own `convert_hf_to_gguf.py`.
"""
ASKED_SO = """The prompt is the pattern with a text in it, up to `[MASK]`, without the spaces before
that. The likeliest next token is then the first one of a label word.
"""
READABLE = 1e6  # from which on a figure is told by its order of magnitude


@dataclass(frozen=True)
class Card:
    """What a model card tells beside where the adapter comes from; empty: not known.

    Attributes:
        rounds: Rounds of training.
        devices: Devices that took part.
        accuracies: Share of right answers on the devices' own test texts by round; 0 is before the
            first.
        date: Day of the export, such as 2026-01-31.
        version: Version of smidgen.
        licence: The base's, as the base says it.
        entity_f1: Strict F1 of entities on the test texts, by round; of tagging.
        losses: Mean cross-entropy on them in nats, by round; of masked words it is shown, as
            perplexity, but where no number holds that.
        privacy: What differential privacy it has, in words.
        secure_aggregation: In what its updates were masked; empty: they were seen.
    """

    rounds: int = 0
    devices: int = 0
    accuracies: Mapping[int, float] = field(default_factory=dict)
    date: str = ""
    version: str = ""
    licence: str = ""
    entity_f1: Mapping[int, float] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    privacy: str = ""
    secure_aggregation: str = ""


def licence_of(base: Base) -> str:
    """The licence that a base names in its manifest, metadata or card; empty without one."""
    if base.manifest is not None:
        return base.manifest.licence or ""
    if base.is_gguf:
        with GgufFile(base.folder) as file:
            named = file.value("general.license")
        return named if isinstance(named, str) and re.fullmatch(r"[\w.+-]{1,60}", named) else ""
    try:
        with (base.folder / README).open(encoding="utf-8") as file:
            # Characters of a base's card in which its licence is looked for
            beginning = file.read(4096)
    except (OSError, ValueError):
        return ""
    found = re.match(r"---\n(?:(?!--- *\n).*\n)*?license: *([\w.+-]{1,60}) *\n", beginning)
    return found[1] if found else ""


def is_hub_name(base_name: str) -> bool:
    """Whether `from_pretrained` finds a base of this name wherever there is a network."""
    return base_name != EMBEDDED and not base_name.startswith("./")


def loadable_name(base_name: str) -> str:
    """What `from_pretrained` is given: a hub's name, or a folder below where one stands."""
    return f"./{EMBEDDED}" if base_name == EMBEDDED else base_name


def portable_name(base_name: str) -> str:
    """A base's name without the folders of the machine it was named on.

    A hub's name (`NAME` or `ORG/NAME`) and `embedded` stay; of a path its last part does. Of the
    result it is the result. Nothing is looked up: who knows that `packs/mine` is a folder gives
    `./packs/mine`.
    """
    if Path(base_name).parts[-3:] == ("edge_client", "embedded", "base"):
        return EMBEDDED
    is_path = base_name.startswith((".", "/", "~")) or "\\" in base_name
    if not is_path and base_name.count("/") <= 1:
        return base_name
    parts = [part for part in re.split(r"[/\\]", base_name) if part.strip(".~ ")]
    return f"./{parts[-1] if parts else 'base'}"


def model_card(
    adapter: str,
    base_name: str,
    task: Task,
    card: Card,
    *,
    has_gguf: bool = False,
    is_causal: bool = False,
    config: Mapping[str, Any] | None = None,
) -> str:
    """The text of an exported adapter's `README.md`.

    Args:
        adapter: The adapter's name.
        base_name: The base's, as `portable_name` gives it.
        task: What it was trained for.
        card: What else is known.
        has_gguf: Whether `adapter.gguf` is there.
        is_causal: Whether the base is a causal language model.
        config: What its config.json would say, of a GGUF file that is at hand.
    """
    spec, base_name = parse_adapter(adapter), _line(base_name)
    if spec.net:
        return _net_card(spec, base_name, task, card)
    parts = [
        _front_matter(spec, base_name, task, card.licence, is_causal=is_causal),
        f"# {_line(task.name)}: {adapter} for {base_name}\n",
        "An adapter of a frozen language model, trained by smidgen on devices whose texts stayed "
        f"there. {kind_of(task).card.answers}\n",
        *_asked(spec, task, is_causal=is_causal),
        "## How it was trained\n",
        _facts(adapter, base_name, card),
        _scores(task, card),
        "## Use it\n",
        "With smidgen, which finds task and adapter in this folder:\n",
        _listed([_command(base_name, task)]),
        *_with_peft(spec, base_name, task, is_causal=is_causal, config=config),
        RIDGE_NOTE if spec.ridge else "",
        "In PEFT, ask texts one by one, or in batches of one length: padding on the left comes "
        "between the soft prompt and a shorter text, which is answered otherwise then.\n"
        if spec.prompt_tokens and is_causal
        else "",
        LLAMA if has_gguf else "",
        ASKED_SO if has_gguf and task.patterns else "",
        *_limits(task, card.privacy),
    ]
    return "\n".join(part for part in parts if part)


def merged_card(
    adapter: str, base_name: str, task: Task, card: Card, *, bits: int, is_causal: bool
) -> str:
    """The text of a merged model's `README.md`; see `model_card`.

    Args:
        adapter: The adapter's name.
        base_name: The base's.
        task: What it was trained for.
        card: What else is known.
        bits: Of the base's weights.
        is_causal: Whether it is a causal language model.
    """
    spec, base_name = parse_adapter(adapter), _line(base_name)
    auto = "AutoModelForCausalLM" if is_causal else "AutoModelForMaskedLM"
    parts = [
        _front_matter(spec, base_name, task, card.licence, is_causal=is_causal, is_merged=True),
        f"# {_line(task.name)}: {base_name} with {adapter} merged into it\n",
        "A language model with an adapter in its weights, trained by smidgen on devices whose "
        f"texts stayed there. {_rounding(bits)}\n",
        "## How it was trained\n",
        _facts(adapter, base_name, card),
        _scores(task, card),
        "## Use it\n",
        f"""```python
from transformers import {auto}

model = {auto}.from_pretrained(".")
```
""",
        MERGED_OLLAMA if is_causal else "",
        *_limits(task, card.privacy),
    ]
    return "\n".join(part for part in parts if part)


def _rounding(bits: int) -> str:
    """What merging does to the weights of a base of so many bits."""
    if bits == 32:
        return "Its weights are float32, as the base's, so its answers are those of both together."
    if bits == 16:
        return (
            "Each changed weight is rounded to the base's 16 bits once: answers differ a little "
            "from those of base and adapter side by side."
        )
    return (
        f"The base was used in {bits} bits. Its matrices are dequantized here, and rounded to "
        "bfloat16 with the adapter added: answers differ a little from those of the quantized base "
        "and the adapter side by side, and it is not the base in full precision."
    )


def _limits(task: Task, privacy: str) -> list[str]:
    """What it is not for, and how far its texts are protected."""
    said = "no differential privacy was applied"
    if privacy:
        said = "differential privacy bounds how much of this run's, but for the scores above"
    return [
        "## What it is not\n",
        f"{kind_of(task).card.limits} Scores are of the training devices' own texts, where there "
        "are any; others were not looked at. An adapter learns from texts, and some of what is in "
        f"them may be guessed from it; {said}.\n",
    ]


def _asked(spec: AdapterSpec, task: Task, *, is_causal: bool) -> list[str]:
    """What is told apart, and how it is asked."""
    head = kind_of(task).head(task)
    if head.answers == "all words":
        return [f"{kind_of(task).asked_in_words(task)}\n"]
    told = _listed(_label(task, label, spec) for label in task.labels)
    if head.is_of_words:
        said = "Each word is asked at its first token. The head's rows are these tags, in this "
        said += "order: `O` outside, `B-` the first word of an entity, `I-` a further one:\n"
        return [told, said, _listed([json.dumps(task.tags, ensure_ascii=False)])]
    if spec.head:
        return [told]
    patterns = _listed(json.dumps(pattern, ensure_ascii=False) for pattern in task.asked(is_causal))
    return [told, "It is asked by these patterns:\n", patterns]


def _command(base_name: str, task: Task) -> str:
    option = _base_option(base_name)
    if kind_of(task).is_causal:
        return f"smidgen client generate --adapter . --base {option} 'a text'"
    return f"smidgen client predict --adapter . --base {option} 'a text'"


def _with_peft(
    spec: AdapterSpec,
    base_name: str,
    task: Task,
    *,
    is_causal: bool,
    config: Mapping[str, Any] | None,
) -> list[str]:
    """How it is used without smidgen's commands."""
    if is_causal and is_gguf(base_name):
        keys = "".join(f"    {key}={value!r},\n" for key, value in (config or {}).items())
        made = f"AutoConfig.for_model(\n{keys})" if keys else FROM_FOLDER
        return [GGUF_BASE.format(file=base_name.removeprefix("./"), config=made)]
    if kind_of(task).is_causal:
        return ["With PEFT (`pip install peft transformers`), from this folder:\n", CAUSAL]
    if has_peft_form(spec, task):
        return [
            "With PEFT (`pip install peft transformers`), from this folder; these lines give the "
            "answers of smidgen itself:\n",
            f"```python\n{_snippet(task)}```\n",
            f"```python\n{_used(spec, task)}```\n",
            _note(spec, base_name, task, is_causal=is_causal),
        ]
    base = json.dumps(_base_option(base_name).strip("'"))
    return [
        "Or from Python:\n",
        f'```python\nimport smidgen\n\nsmidgen.predict(["a text"], ".", base={base})\n```\n',
        "PEFT does not load it: behind a soft prompt PEFT's classifiers read the prompt's first "
        "token, while this head was trained to read the text's. So there is no "
        "`adapter_config.json`, and the tensors are in `smidgen_adapter.safetensors`.\n",
    ]


def _snippet(task: Task) -> str:
    """Python that reads an adapter; each label by itself where a text may have several."""
    text = SNIPPET.read_text(encoding="utf-8")
    if kind_of(task).head(task).loss == "sigmoid":
        text = text.replace(".mean(0).softmax(-1)", ".mean(0).sigmoid()")
        text = text.replace(".log_softmax(-1)", "").replace("row.softmax(-1)", "row.sigmoid()")
    return text


TELLS = {
    "generator": "which ranks of one a device needs",
    "rates": "how fast a device trains which part of one",
}
PAPERS = {"generator": "FedP2EFT, arXiv:2502.04387", "rates": "FedL2P, arXiv:2310.02420"}


def _net_card(spec: AdapterSpec, base_name: str, task: Task, card: Card) -> str:
    parts = [
        "---\ntags: [smidgen, federated-learning]\n---\n",
        f"# {_line(task.name)}: {spec} for {base_name}\n",
        f"Not an adapter, but a small net that tells {TELLS[spec.net]}, by what the base's layers "
        f"make of its texts, in the mean and in its spread ({PAPERS[spec.net]}). It was trained by "
        "smidgen on devices whose texts stayed there.\n",
        "## How it was trained\n",
        _facts(str(spec), base_name, card),
        "## Use it\n",
        "It makes an adapter of a device's own, of any smaller number of ranks:\n",
        _listed(["smidgen client personalize --generator . --data FOLDER --rank-budget 2"]),
        "PEFT knows no such thing; the adapter that it makes is PEFT's.\n",
    ]
    return "\n".join(parts)


def _licence(licence: str) -> list[str]:
    """The hub's identifier, or `other` with the licence's own name; nothing where none is known."""
    if not licence:
        return []
    if re.fullmatch(r"[a-z0-9.-]+", licence.lower()):
        return [f"license: {licence.lower()}"]
    return ["license: other", f"license_name: {json.dumps(_line(licence), ensure_ascii=False)}"]


def _front_matter(
    spec: AdapterSpec,
    base_name: str,
    task: Task,
    licence: str,
    *,
    is_causal: bool,
    is_merged: bool = False,
) -> str:
    """What the hub reads. It wants ids of the hub: a base without one is not named there."""
    kind = "lora" if spec.rank else "prompt-tuning" if spec.prompt_tokens else "bitfit"
    own = "text-generation" if is_causal else "fill-mask"
    pipeline = kind_of(task).card.pipeline if spec.head else own
    tags = ["smidgen", "federated-learning", *([kind] if spec.is_in_layers else [])]
    library = "peft" if has_peft_form(spec, task) else "smidgen"
    lines = [
        *([f"base_model: {json.dumps(base_name)}"] if is_hub_name(base_name) else []),
        f"library_name: {'transformers' if is_merged else library}",
        f"pipeline_tag: {pipeline}",
        *_licence(licence),
        f"tags: [{', '.join(tags)}]",
    ]
    return "\n".join(["---", *lines, "---", ""])


def _listed(lines: Iterable[str]) -> str:
    """Lines as they are: indented, they are code, whatever signs they hold."""
    return "".join(f"    {line}\n" for line in lines)


def _label(task: Task, label: str, spec: AdapterSpec) -> str:
    told = json.dumps(label, ensure_ascii=False)
    if spec.head:
        return told
    return f"{told}, by the word {json.dumps(task.verbalizer[label], ensure_ascii=False)}"


def _facts(adapter: str, base_name: str, card: Card) -> str:
    facts = {
        "adapter": adapter,
        "base": base_name if not card.licence else f"{base_name} (licence: {card.licence})",
        "rounds": card.rounds,
        "devices": card.devices,
        "differential privacy": card.privacy,
        "secure aggregation": card.secure_aggregation,
        "written": " by smidgen ".join(filter(None, (card.date, card.version))),
    }
    return "".join(f"- {name}: {value}\n" for name, value in facts.items() if value)


def _scores(task: Task, card: Card) -> str:
    """A table of what is known of each round; columns of nothing are left out."""
    named: dict[str, Mapping[int, float]] = {"accuracy": card.accuracies}
    measure = kind_of(task).measure
    if measure.key == "f1":
        named = {measure.name: card.entity_f1, measure.beside: card.accuracies}
    if measure.has_perplexity:
        told = {index: perplexity(loss) for index, loss in card.losses.items()}
        words = {index: one for index, one in told.items() if one is not None}
        named = {"perplexity": words, measure.beside: card.accuracies}
    columns = {name: one for name, one in named.items() if one}
    if not columns:
        return ""
    heads = "".join(f" {name} on the devices' test texts |" for name in columns)
    table = f"| round |{heads}\n|---:|{'---:|' * len(columns)}\n"
    for index in sorted({index for one in columns.values() for index in one}):
        figures = (
            f" {_figure(one[index])} |" if index in one else " |" for one in columns.values()
        )
        table += f"| {index} |{''.join(figures)}\n"
    return table


def _figure(value: float) -> str:
    return f"{value:.3f}" if value < READABLE else f"{value:.1e}"


def _base_option(base_name: str) -> str:
    return base_name if base_name == EMBEDDED or is_hub_name(base_name) else f"'{base_name}'"


def _used(spec: AdapterSpec, task: Task) -> str:
    """Python that answers a text, behind the lines of `with_peft.py`."""
    is_pair = not spec.head and any("{text_b}" in pattern for pattern in task.asked())
    second = f", {json.dumps('a second one')}" if is_pair else ""
    card = kind_of(task).card
    return f"print({card.call}({json.dumps(card.example)}{second}))\n"


def _note(spec: AdapterSpec, base_name: str, task: Task, *, is_causal: bool) -> str:
    """Where the base is, and which of PEFT's auto classes load the adapter."""
    kind = kind_of(task).card.auto if spec.head else "ForCausalLM" if is_causal else ""
    place, auto = loadable_name(base_name), f"AutoPeftModel{kind}"
    notes = []
    if not is_hub_name(base_name):
        notes.append(
            "The base is looked for in the folder `base` here, where `smidgen coordinator export "
            f"--with-base copied` copies it, and as `{place}` where Python is started."
        )
    if base_name == EMBEDDED:
        notes.append('`ln -s "$(smidgen client base embedded --path)" embedded` puts it there.')
    if spec.prompt_tokens and not is_causal:
        notes.append("PEFT's auto classes have none for soft prompts of masked language models.")
    else:
        less = ", without its ridge regression" if spec.ridge else ""
        notes.append(f'Where the base is found, `{auto}.from_pretrained(".")` loads it, too{less}.')
    return " ".join(notes) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())
