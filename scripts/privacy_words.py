"""What docs/privacy.md says that no type knows: what a field reveals, and the prose around it.

`scripts/privacy_page.py` puts these lines beside the fields of the wire and writes the page.
"""

QUERY = {  # what the parts of a query are, which have no docstring
    "wait_s": "Seconds it will wait for an answer.",
    "life": "What it drew at its start.",
}
SAYS_NOTHING = "Nothing of the device."

# What the run's owner learns from a field that leaves a device, and what other devices get of it.
# "" for the latter: nothing.
REVEALS: dict[str, tuple[str, str]] = {
    "Enrol.protocol": ("Which smidgen it may be.", ""),
    "Enrol.token": ("That it was invited. Whoever reads it can enrol devices.", ""),
    "Enrol.name": (
        "Whatever its owner calls it; the host's name unless `--name` is given. A name such as "
        "`annas-phone` says who it is.",
        "The name, while it is waited for, in a run with `tell_names`.",
    ),
    "Enrol.life": ("When it was started anew.", ""),
    "Enrol.tags": (
        "Whatever its owner says with `--tag`; where it stands, in `site=kitchen`.",
        "",
    ),
    "DeviceFacts.machine": ("The kind of processor.", ""),
    "DeviceFacts.cores": ("The class of hardware; with the other facts nearly a fingerprint.", ""),
    "DeviceFacts.memory_bytes": ("The same; exact to the byte, so often unique.", ""),
    "DeviceFacts.python": ("How old its software is, and so what may be wrong with it.", ""),
    "DeviceFacts.smidgen": ("The same.", ""),
    "DeviceFacts.engine": ("Which of its libraries are installed.", ""),
    "DeviceFacts.base_id": (
        "Which base it holds; of a base that only some people have, that it is one of these.",
        "",
    ),
    "DeviceFacts.budget_bytes": ("How much memory its owner lets it take.", ""),
    "DeviceFacts.board": ("Its make and model; with the other facts nearly a fingerprint.", ""),
    "DeviceFacts.is_on_mains": ("Whether it was plugged in when it started.", ""),
    "Membership.state": ("Whether it takes part, and that it has the finished adapter.", ""),
    "Membership.failure": (
        "Why it cannot, of those listed under [failures](#failures): that it holds another base, "
        "too little memory, or texts of other labels.",
        "",
    ),
    "Membership.peak_bytes": ("How much memory it will take, so its engine and its budget.", ""),
    "Membership.most_rank": (
        "How much of the run's rank its memory and its owner let it take; of other runs nothing.",
        "",
    ),
    "work.wait_s": (SAYS_NOTHING, ""),
    "work.life": ("When it was started anew, and that its state folder was copied.", ""),
    "UpdateHeader.protocol": (SAYS_NOTHING, ""),
    "UpdateHeader.work_id": (f"{SAYS_NOTHING} The coordinator drew it.", ""),
    "UpdateHeader.num_examples": (
        "How many texts it trained on.",
        "Nothing but its weight in the mean.",
    ),
    "UpdateHeader.steps": (
        "Sent in runs with control variates alone. How many texts it trained on, to within a "
        "batch; with labelling, so how many of them are pseudo-labelled, which its report says, "
        "too. With the update it gives the mean gradient over its texts, which the update gives "
        "up to a factor.",
        "The mean over devices of that mean gradient, which is handed out for the next round.",
    ),
    "UpdateHeader.codec": (
        "Nothing of the device: what its run file asked for.",
        "nothing",
    ),
    "Update.delta": (
        "The most of all: see [updates](#updates) below.",
        "The mean over the round's devices, in the next adapter. In a round of one device that is "
        "its update.",
    ),
    "Report.work_id": (f"{SAYS_NOTHING} The coordinator drew it.", ""),
    "Report.outcome": ("Whether it could do the work.", ""),
    "Report.num_examples": (
        "How many texts it holds for this kind of work; of masked words and of tagging how many "
        "tokens or words those to test on have, so about how long they are.",
        "",
    ),
    "Report.loss": (
        "How well the adapter fits its texts; of a device with one text, how well that one.",
        "",
    ),
    "Report.accuracy": (
        "How often the adapter is right there; of a device with one test text, whether it is.",
        "The mean over all devices, by round, when the run is over.",
    ),
    "Cost.phases_s": (
        "How fast it is and how busy. Time grows with the number and length of its texts.",
        "",
    ),
    "Cost.cpu_s": ("The same, and what else ran beside the client.", ""),
    "Cost.peak_rss_bytes": ("How much memory its plan takes; grows with its longest text.", ""),
    "Cost.is_peak_of_work": ("How its kernel is set up.", ""),
    "Cost.peak_phase": ("Which part of the work needs most memory.", ""),
    "Cost.peak_anon_bytes": ("The same as `peak_rss_bytes`.", ""),
    "Cost.peak_file_bytes": ("How much of its base is kept in memory.", ""),
    "Cost.pss_bytes": ("The same, and whether another process uses the same files.", ""),
    "Cost.minor_faults": ("How much memory it took anew.", ""),
    "Cost.major_faults": ("How short of memory the device is.", ""),
    "Cost.disk_read_bytes": ("The same; whether its texts were read from disk again.", ""),
    "Cost.payload_up_bytes": ("Nothing that the coordinator did not see arrive.", ""),
    "Cost.payload_down_bytes": ("Nothing that the coordinator did not send.", ""),
    "Cost.tcp_up_bytes": ("How often it had to send again; how long a proxy's headers are.", ""),
    "Cost.tcp_down_bytes": ("The same of what it received.", ""),
    "Cost.tcp_retransmitted_bytes": ("How good its network is.", ""),
    "Cost.requests": ("How often its connection broke.", ""),
    "Cost.connections": ("The same.", ""),
    "Cost.energy_j": ("What the work took of its battery or supply.", ""),
    "Cost.energy_source": ("Which kind of board it is.", ""),
    "Cost.hottest_c": ("How warm it is where the device stands.", ""),
    "Cost.is_throttled": ("The same.", ""),
    "Cost.power_mode": ("How its owner has set the board.", ""),
    "Cost.accelerator_peak_bytes": ("Whether it computes on a GPU.", ""),
    "Report.failure": (
        "What kind of trouble it has, of those listed under [failures](#failures).",
        "",
    ),
    "Report.is_leaving": ("That its client has stopped.", ""),
    "Report.labelled": ("How many texts its owner has labelled.", ""),
    "Report.pseudo_labels": ("How many of its unlabelled texts the run's adapter is sure of.", ""),
    "Report.mean_log_probabilities": (
        "The mean answer over its test texts, so roughly which labels are frequent there; of a "
        "device with one test text, the answer to that text.",
        "The mean over all devices, as the prior of label work.",
    ),
    "Entities.there": (
        "How many entities of each type its test texts hold: what they are about. Of a device with "
        "one test text, what is in that text; no word of it.",
        "The F1 of all devices together, by round, when the run is over.",
    ),
    "Entities.found": (
        "How many the run's adapter takes for them there, so roughly the same.",
        "The same.",
    ),
    "Entities.strict": ("How many of them the adapter finds.", "The same."),
    "Entities.typed": ("How many it nearly finds.", ""),
    "Entities.partial_halves": ("The same.", ""),
    "Report.refused_bytes": ("That a proxy between refused its update, and its size.", ""),
    "Report.layer_forwards": (
        "How much it computed: texts times layers, so how many texts were easy.",
        "",
    ),
    "Confidences.texts": ("How many unlabelled texts it holds.", "Sums of it set thresholds."),
    "Confidences.counts": (
        "For each label, how many of its texts the adapter takes for it, and how surely: the "
        "device's mix of topics. Of a device with one text, that text's label and confidence. "
        "Counts before and after a text was added say the same of that text.",
        "Thresholds that follow from the sums over all devices.",
    ),
}

# What a device learns of other devices from a field that it receives; "" for nothing.
LEARNS: dict[str, str] = {
    "Enrolled.protocol": "",
    "Enrolled.device_id": "",
    "Enrolled.name": "A number behind the name, as in `kitchen-2`: the name was taken.",
    **{f"Terms.{name}": "" for name in ("run_id", "run_name", "base_id", "base_name")},
    **{f"Terms.{name}": "" for name in ("adapter_spec", "task", "training", "rounds", "labelling")},
    "Terms.min_clients": "",
    "Terms.pack": "",
    "Outdated.minimum": "",
    **{f"Work.{name}": "" for name in ("protocol", "work_id", "kind", "run_id", "round_index")},
    **{f"Work.{name}": "" for name in ("base_id", "adapter_spec", "adapter_bytes", "task")},
    **{f"Work.{name}": "" for name in ("training", "seed", "labelling", "keep")},
    "Work.adapter_sha256": "Names the adapter, which is the mean of all updates so far.",
    "Work.prior": "The mean over all test texts; of two devices each can work out the other's.",
    "Work.thresholds": "How sure devices are of each label, as one number for all of them.",
    "Work.test_share": "",
    "Work.most": "About how many texts of one class the devices hold.",
    "Work.updates": "With control variates, names the mean of all devices' mean gradients; of two "
    "devices each can work out the other's. Of other steps nothing.",
    "Work.steps": "Names files, each what one of the last rounds changed: the mean of its updates. "
    "Two adapters tell the same.",
    "Waiting.phase": "What others are doing.",
    "Waiting.run_name": "",
    "Waiting.round_index": "",
    "Waiting.rounds": "",
    "Waiting.missing": "How many have not answered yet.",
    "Waiting.asked": "How many were asked.",
    "Waiting.closes_in_s": "",
    "Waiting.names": "Who has not answered yet; only where the run's owner sets `tell_names`.",
    "Over.adapter_sha256": "Names the finished adapter, the mean of all updates.",
    "Over.run_id": "",
    "Over.run_name": "",
    "Over.ended": "",
    "Over.rounds": "",
    "Over.kept_round": "",
    "Over.devices": "How many there were.",
    "Over.accuracies": "The mean over all devices; of two, each can work out the other's.",
    "Over.losses": "The mean over all devices, none far from the median; of two, as above.",
    "Receipt.accepted": "",
    "Receipt.reason": "",
}

WHEN: dict[str, str] = {
    "Enrol": "Each time its client starts, before anything else; the token until it is known.",
    "work": "Always, as long as its client runs: this is how it waits.",
    "Membership": "When a run wants it and its texts, base and budget were looked at; each "
    "minute while it\nfetches a run's base; when a run is over.",
    "safetensors": "After each training. The header travels in the safetensors file's metadata.",
    "Report": "After each piece of work, done or failed.",
}

HEAD = """
# What leaves a device

The texts stay. What leaves is listed here whole, message by message and field by field. This page
is generated from the types of the wire (`scripts/privacy_page.py`), and a test compares the two: a
field that is new in a message cannot be left out here.

Three parties may learn something:

- **the run's owner**, who has the coordinator, its store and its log, and sees every field below.
  So does whoever they let in as an operator;
- **other devices** of the run, which get what the coordinator makes of all answers;
- **somebody on the wire**. Over TLS (`coordinator init`), which a device checks by the fingerprint
  it was started with, they see addresses, times and sizes: who takes part, when, and for how long.
  Over plain HTTP, which is spoken on loopback or where both sides say `--plain-http`, whoever sits
  on the way reads all that the owner reads, the enrolment token and the device keys included, and
  can change it.
"""

WORDS = """
## What leaves

Only these fields can hold words; all others are numbers and codes. Tokens and ids are those that
the coordinator gave; name, tags and facts have nothing to do with the texts.
"""

NOTES = """
Every request carries `User-Agent: smidgen`, nothing of the system, and as `Authorization` the key
that the device drew before its first one. The coordinator sees the network address it comes from.

A device whose owner lets it fetch packs (`--packs`) asks the coordinator, or the mirrors that the
coordinator or the owner names, for the files of a run's base. A mirror learns the device's address
and which base it lacks, and gets neither its key nor anything else.
"""

REVEALED = """
## What this reveals

There is **no secure aggregation and no differential privacy yet**. The coordinator sees every
device's update and counts by themselves, without noise, and keeps them in its store. Take part only
in a run whose owner you would trust with what follows.

### Updates

An update is the change of the adapter after some passes over the device's texts. It is no text, but
it was computed from texts, and work on this is discouraging:

- Zhu, Liu and Han 2019, "Deep Leakage from Gradients"
  ([arXiv:1906.08935](https://arxiv.org/abs/1906.08935)), recover training inputs, tokens of a
  masked language model among them, from the gradient of one step.
- Balunović et al. 2022, "LAMP" ([arXiv:2202.08827](https://arxiv.org/abs/2202.08827)), recover much
  of the sentences of small batches from gradients of BERT models, helped by a language model.
- Melis et al. 2019, "Exploiting Unintended Feature Leakage in Collaborative Learning"
  ([arXiv:1805.04049](https://arxiv.org/abs/1805.04049)), tell from updates whether a text was
  trained on, and properties of the texts that have nothing to do with the task.
- Fowl et al. 2022, "Decepticons" ([arXiv:2201.12675](https://arxiv.org/abs/2201.12675)), show that
  a server which sends a corrupted transformer, instead of an honest one, gets far more.

smidgen's updates are of a small adapter on a frozen base, summed over several steps and epochs;
embeddings are not trained, so an update has no row per word. All this makes such attacks harder.
Nobody has measured how much harder, so do not count on it. Few texts, few steps and high ranks make
them easier. A coordinator that runs other code than this repository's cannot change the base, but
it chooses the adapter, the patterns and the label words that a device computes with; what that is
worth to it has not been studied here.

With control variates (`scaffold`) a device sends no more than its update and the number of its
steps, from which the coordinator works out the mean gradient over the device's texts: an update is
the same but for the learning rate and that number. The device's own variate stays with it.

A coded update (`[updates]`) is the same with less in it. What it leaves out stays in the device's
state folder, and part of it is in the next: a single update says less of one round's training, but
their sum says the same. No protection is claimed for it. A coded step (`down`) is to the adapters
before and after it what a coded update is to a device's: it says no more than both of them. The
coordinator sees which of them a device fetches, so which adapter it holds.

The finished adapter is made of all devices' updates. Whoever holds it can ask whether a text was
trained on (membership inference: Shokri et al. 2017,
[arXiv:1610.05820](https://arxiv.org/abs/1610.05820)).

### Counts, means and histograms

Numbers of texts say how much somebody writes, and a report per round says when. Means over many
texts say little of one; over one text they are that text's. The same holds for histograms of
confidences: a device with one unlabelled text tells that text's most probable label, and one that
adds a text between two rounds tells that of the new one. `num_examples` says how many texts stand
behind a mean, so the owner knows which of them to look at.

### Times, facts and names

Times say when a device is on, how fast it is and roughly how much text it has. Its key
makes it one device in all runs of a coordinator. Facts make it recognisable at another one,
together with its address even under another name. Name and
tags are what its owner gave it: give `--name` if the host's name says whose it is.
"""

CHECK = """
## What stays on the device

The texts, wherever `--data` is, and the state folder. It is as private as the texts: what frozen
layers gave, and readings by text hash, say what the texts were to anybody who can guess them.

{state}

The client's own log stays, too. It names files and may quote a line of them, so read it before you
send it to somebody.

## How to check this

    python -m pytest tests/attacks/test_no_text_leaves.py -m "slow or not slow"

Real clients run with texts, labels, columns, folders and users' names that occur nowhere else, and
meet some sixty kinds of trouble: swapped columns, damaged files, full disks, too little memory. A
relay between client and coordinator keeps every byte. None of those words may be in them, in the
coordinator's store, in its log, or in what its commands print or export, whether in the clear or as
JSON, base64, hexadecimal digits or UTF-16; and one control does send such words, to show that they
would be found. The test does not look for words that somebody computes out of an update. To see the
messages themselves, put any HTTP proxy before `--coordinator`.
"""

SIZES = """
## How large it is

Measured by that relay, in bytes with HTTP's own, in a run of 3 rounds with labelling, one device, 4
labelled texts, 4 to test on and 3 unlabelled ones; `tests/attacks/test_sizes.py` measures it again
and holds this table to it within 5 %. Three labels; a histogram grows with them, an update with the
adapter. TLS comes on top.

| request | from the device | to the device |
|---|---|---|
| `POST /v1/enrol` | 584 | 194 |
| `GET /v1/work`, a run's terms | 195 | 580 |
| `POST /v1/runs/.../membership` | 256 to 281 | 158 |
| `GET /v1/work`, work given | 195 to 196 | 771 to 868 |
| `GET /v1/work`, nothing to do | 195 | 157 to 216 |
| `GET /v1/adapters/...`, `lora:8` of the embedded base | 233 | 100,820 |
| `PUT /v1/work/.../update`, the same | 100,937 | 158 |
| `POST .../report` after training | 993 to 1,001 | 158 |
| `POST .../report` after an evaluation | 1,005 to 1,016 | 158 |
| `POST .../report` after labelling | 1,166 to 1,171 | 158 |
| `GET /v1/work`, run over | 196 | 338 |
| the whole run, about 33 requests | 317,939 | 414,985 |
"""
