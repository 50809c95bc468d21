from dataclasses import replace
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.wire import fleet, messages
from smidgen.edge_client.wire.reports import SAID, Cost, Failure, counted
from smidgen.edge_client.wire.tensors import (
    UPDATES_SINCE,
    Update,
    check_same_parameters,
    decode_adapter,
    decode_update,
    digest_header,
    encode_adapter,
    encode_update,
    sha256,
)
from smidgen.edge_client.wire.training import Labelling, Training

TAGGING = Task("drugs", ("Drug", "Dose"), kind="tagging")
TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})
WORK = messages.Work(14, "w", "train", "r", 2, "base", "lora:8", "sha", 9, TASK, Training(), 7)

LABEL_WORK = replace(
    WORK,
    kind="label",
    labelling=Labelling(confidences={"a": 0.8}),
    keep=0.25,
    prior=(-0.5, -1.5),
    thresholds=(0.5, 0.75),
)
TERMS = fleet.Terms(
    *("r", "mail", "base", "embedded", "lora:8", TASK, Training()),
    rounds=9,
    min_clients=2,
)
REPORT = messages.Report(
    "w", "done", 5, cost=Cost({"label": 0.5}, tcp_up_bytes=7), labelled=3, pseudo_labels=2
)
TOLD = counted(9, [0, 1, 1, 0], [1.0, 0.5, 0.501, 0.499], 2)

# Protocol 14 on the wire, byte for byte: a change here needs a new protocol number.
GOLDEN_WORK = (
    b'{"adapter_bytes":9,"adapter_sha256":"sha","adapter_spec":"lora:8","base_id":"base",'
    b'"keep":0.0,"kind":"train","labelling":null,"most":0,"prior":[],"protocol":14,'
    b'"round_index":2,"run_id":"r","seed":7,"steps":[],'
    b'"task":{"ensemble":false,"kind":"labels","labels":["a","b"],'
    b'"masking":{"share":0.15,"whole_words":false},"name":"t","options":{},'
    b'"patterns":["[MASK] {text}"],"verbalizer":{"a":"good","b":"bad"}},"test_share":1.0,'
    b'"thresholds":[],"training":{"adjusted":false,"batch":8,"epochs":4,"least_samples":0,"lr":0.005,"momentum":0.0,'
    b'"optimizer":"adamw","proximal":0.0,"sample_share":0.0,"scaffold":false,"tokens":128,"weight_decay":0.0},"updates":[],"work_id":"w"}'
)
GOLDEN_LABELLING = (
    b'{"class_floor":0.5,"class_share":1.0,"compute_share":0.25,"confidence":0.9,'
    b'"confidences":{"a":0.8},"early_exit":true,"hardly_moved":0.1,"infer_clients":0,'
    b'"infer_every":1,"is_gated":true,"keep_first":0.1,"keep_last":0.5,"keep_per_client":0,"known_first":false,'
    b'"read_share":1.0,"settled_after":0,"stops_when_found":true,"weight":1.0}'
)
GOLDEN_REPORT = (
    b'{"accuracy":null,"confidences":null,"cost":{"accelerator_peak_bytes":null,"connections":0,'
    b'"cpu_s":{},"disk_read_bytes":null,"energy_j":null,"energy_source":null,"hottest_c":null,'
    b'"is_peak_of_work":true,"is_throttled":null,"major_faults":null,"minor_faults":null,'
    b'"payload_down_bytes":0,"payload_up_bytes":0,"peak_anon_bytes":null,"peak_file_bytes":null,'
    b'"peak_phase":null,"peak_rss_bytes":null,"phases_s":{"label":0.5},"power_mode":null,'
    b'"pss_bytes":null,"requests":0,"tcp_down_bytes":null,"tcp_retransmitted_bytes":null,'
    b'"tcp_up_bytes":7},"entities":null,"failure":null,"is_leaving":false,"labelled":3,"layer_forwards":0,'
    b'"loss":null,"mean_log_probabilities":[],"num_examples":5,"outcome":"done",'
    b'"pseudo_labels":2,"refused_bytes":0,"work_id":"w"}'
)
# Forty counts per label; the last bin holds the surest.
GOLDEN_TOLD = b'{"counts":[[' + b"0," * 39 + b"1],[2" + b",0" * 39 + b']],"texts":9}'
GOLDEN_UPDATE = (
    b'\x90\x00\x00\x00\x00\x00\x00\x00{"__metadata__":{"smidgen":"{\\"num_examples\\":3,'
    b'\\"protocol\\":14,\\"work_id\\":\\"w\\"}"},"x":{"dtype":"F32","shape":[2],'
    b'"data_offsets":[0,8]}}      \x00\x00\x80\x3f\x00\x00\x00\xc0'
)


def test_work_is_these_bytes_in_protocol_14() -> None:
    assert messages.encode(WORK) == GOLDEN_WORK
    assert messages.decode(GOLDEN_WORK, messages.Work) == WORK


def test_label_work_is_these_bytes_in_protocol_14() -> None:
    golden = GOLDEN_WORK.replace(b'"keep":0.0,"kind":"train"', b'"keep":0.25,"kind":"label"')
    golden = golden.replace(b'"labelling":null', b'"labelling":' + GOLDEN_LABELLING)
    golden = golden.replace(b'"prior":[]', b'"prior":[-0.5,-1.5]')
    golden = golden.replace(b'"thresholds":[]', b'"thresholds":[0.5,0.75]')
    assert messages.encode(LABEL_WORK) == golden
    assert messages.decode(golden, messages.Work) == LABEL_WORK


@pytest.mark.parametrize(
    ("task", "golden"),
    [
        (
            TAGGING,
            b'{"ensemble":false,"kind":"tagging","labels":["Drug","Dose"],'
            b'"masking":{"share":0.15,"whole_words":false},"name":"drugs","options":{},"patterns":[],'
            b'"verbalizer":{}}',
        ),
        (
            Task("notes", kind="mlm", masking=Masking(0.25, whole_words=True)),
            b'{"ensemble":false,"kind":"mlm","labels":[],'
            b'"masking":{"share":0.25,"whole_words":true},"name":"notes","options":{},"patterns":[],'
            b'"verbalizer":{}}',
        ),
    ],
)
def test_other_kinds_of_task_are_these_bytes_in_protocol_14(task: Task, golden: bytes) -> None:
    work = replace(WORK, task=task)
    before, after = GOLDEN_WORK.index(b'{"ensemble"'), GOLDEN_WORK.index(b',"test_share"')
    body = GOLDEN_WORK[:before] + golden + GOLDEN_WORK[after:]
    assert messages.encode(work) == body and messages.decode(body, messages.Work) == work
    brief = messages.encode_brief(work)
    assert b'"verbalizer"' not in brief and messages.decode(brief, messages.Work) == work


def test_training_on_samples_is_these_bytes_in_protocol_14() -> None:
    work = replace(WORK, training=Training(least_samples=500, sample_share=0.5))
    body = GOLDEN_WORK.replace(b'"least_samples":0', b'"least_samples":500')
    body = body.replace(b'"sample_share":0.0', b'"sample_share":0.5')
    assert messages.encode(work) == body and messages.decode(body, messages.Work) == work
    with pytest.raises(messages.WireError, match="sample_share: least_samples of 1 or more"):
        messages.decode(GOLDEN_WORK.replace(b'_share":0.0', b'_share":0.5'), messages.Work)


def test_label_work_says_how() -> None:
    body = GOLDEN_WORK.replace(b'"kind":"train"', b'"kind":"label"')
    with pytest.raises(messages.WireError, match="labelling: expected with label work"):
        messages.decode(body, messages.Work)
    for keep in (b"-1", b"1.5", b"8"):
        with pytest.raises(messages.WireError, match="keep: 0 to 1"):
            messages.decode(GOLDEN_WORK.replace(b'"keep":0.0', b'"keep":' + keep), messages.Work)


def test_a_cap_and_a_draw_exclude_each_other() -> None:
    drawn = replace(WORK, training=Training(least_samples=500))
    with pytest.raises(WrongInput, match=r"most: 0 where training draws its texts"):
        replace(drawn, most=8)
    with pytest.raises(WrongInput, match="test_share: above 0 to 1"):
        replace(WORK, test_share=0.0)


@pytest.mark.parametrize("task", [TAGGING, Task("notes", kind="mlm")])
def test_what_goes_by_labels_is_for_tasks_that_have_them(task: Task) -> None:
    for message in (WORK, TERMS):
        other = replace(message, task=task)
        with pytest.raises(WrongInput, match=f"labelling: null with a task of kind {task.kind}"):
            replace(other, labelling=Labelling())
        with pytest.raises(WrongInput, match=f"adjusted: false with a task of kind {task.kind}"):
            replace(other, training=Training(adjusted=True))
    with pytest.raises(WrongInput, match=f"most: 0 with a task of kind {task.kind}"):
        replace(WORK, task=task, most=8)


@pytest.mark.parametrize("name", ["prior", "thresholds"])
@pytest.mark.parametrize("numbers", [b"[0.5]", b"[0.5,0.5,0.5]"])
def test_what_is_said_of_labels_is_said_of_each(name: str, numbers: bytes) -> None:
    said = f'"{name}":'.encode()
    with pytest.raises(messages.WireError, match=f"{name}: one number per label, 2, or none"):
        messages.decode(GOLDEN_WORK.replace(said + b"[]", said + numbers), messages.Work)


def test_a_value_out_of_range_is_told_with_its_place() -> None:
    body = GOLDEN_WORK.replace(b'"epochs":4', b'"epochs":0')
    with pytest.raises(msgspec.ValidationError, match=r"epochs: 1 to 10000 - at `\$\.training`"):
        msgspec.json.decode(body, type=messages.Work)


@pytest.mark.parametrize(
    "report",
    [REPORT, messages.Report("w", "done"), messages.Report("w", "done", loss=0.0)],
)
def test_a_brief_report_leaves_out_defaults_and_says_the_same(report: messages.Report) -> None:
    brief = messages.encode_brief(report)
    assert messages.decode(brief, messages.Report) == report
    assert len(brief) < len(messages.encode(report))
    assert b"null" not in brief


def test_a_report_travels_as_these_bytes_in_protocol_14() -> None:
    assert messages.encode_brief(REPORT) == (
        b'{"cost":{"phases_s":{"label":0.5},"tcp_up_bytes":7},"labelled":3,"num_examples":5,'
        b'"outcome":"done","pseudo_labels":2,"work_id":"w"}'
    )


def test_a_report_is_these_bytes_in_protocol_14() -> None:
    assert messages.encode(REPORT) == GOLDEN_REPORT
    assert messages.decode(GOLDEN_REPORT, messages.Report) == REPORT
    old = b'{"outcome":"done","work_id":"w"}'  # what is not said has a value
    assert messages.decode(old, messages.Report) == messages.Report("w", "done")


def test_how_sure_a_device_is_is_these_bytes_in_protocol_14() -> None:
    report = replace(REPORT, confidences=TOLD, mean_log_probabilities=(-0.5, -1.5))
    golden = GOLDEN_REPORT.replace(b'"confidences":null', b'"confidences":' + GOLDEN_TOLD)
    golden = golden.replace(b'"mean_log_probabilities":[]', b'"mean_log_probabilities":[-0.5,-1.5]')
    assert messages.encode(report) == golden
    assert messages.decode(golden, messages.Report) == report


def test_what_was_found_of_entities_is_these_bytes_in_protocol_14() -> None:
    report = replace(REPORT, entities=Entities((4, 1), (3, 0), (2, 0), 3, 5))
    told = b'{"found":[3,0],"partial_halves":5,"strict":[2,0],"there":[4,1],"typed":3}'
    golden = GOLDEN_REPORT.replace(b'"entities":null', b'"entities":' + told)
    assert messages.encode(report) == golden
    assert messages.decode(golden, messages.Report) == report
    for wrong in (told.replace(b"[4,1]", b"[1,1]"), told.replace(b"[3,0]", b"[3]"), b"[]", b'"x"'):
        with pytest.raises(messages.WireError):
            messages.decode(golden.replace(told, wrong), messages.Report)


def test_an_invitation_is_these_bytes_in_protocol_14() -> None:
    task, training = GOLDEN_WORK.split(b'"task":')[1].split(
        b',"test_share":1.0,"thresholds":[],"training":'
    )
    training = training.removesuffix(b',"updates":[],"work_id":"w"}')
    golden = (
        b'{"adapter_spec":"lora:8","base_id":"base","base_name":"embedded","labelling":null,'
        b'"min_clients":2,"pack":null,"rounds":9,"run_id":"r","run_name":"mail","steps":[],'
        b'"task":%b,"training":%b}'
    ) % (task, training)
    assert messages.encode(TERMS) == golden
    assert messages.decode(golden, fleet.Terms) == TERMS
    given = messages.Next(terms=TERMS)
    body = b'{"outdated":null,"over":null,"terms":' + golden + b',"waiting":null,"work":null}'
    assert messages.encode(given) == body and messages.decode(body, messages.Next) == given


def test_who_a_device_is_is_these_bytes_in_protocol_14() -> None:
    facts = fleet.DeviceFacts(
        "aarch64", 4, 8 << 30, "3.11", "1", "onnx", "base", None, "Pi 5", True
    )
    enrol = fleet.Enrol(14, "hall", facts, "token", {"site": "kitchen"}, "l1")
    body = (
        b'{"facts":{"base_id":"base","board":"Pi 5","budget_bytes":null,"cores":4,'
        b'"engine":"onnx","is_on_mains":true,"machine":"aarch64","memory_bytes":8589934592,'
        b'"python":"3.11","smidgen":"1"},"life":"l1","name":"hall","protocol":14,"tags":{"site":"kitchen"},'
        b'"token":"token"}'
    )
    assert messages.encode(enrol) == body and messages.decode(body, fleet.Enrol) == enrol
    enrolled = fleet.Enrolled(14, "d1", "hall-2")
    body = b'{"device_id":"d1","name":"hall-2","protocol":14}'
    assert messages.encode(enrolled) == body
    assert messages.decode(body, fleet.Enrolled) == enrolled


def test_how_a_device_stands_to_a_run_is_these_bytes_in_protocol_14() -> None:
    for told, body in (
        (fleet.Membership("joined", peak_bytes=7), b'{"peak_bytes":7,"state":"joined"}'),
        (fleet.Membership("declined", "base"), b'{"failure":"base","state":"declined"}'),
        (fleet.Membership("home"), b'{"state":"home"}'),
    ):
        assert messages.encode_brief(told) == body
        assert messages.decode(body, fleet.Membership) == told
    for wrong in (
        b'{"state":"declined"}',
        b'{"state":"joined","failure":"base"}',
        b'{"state":"x"}',
    ):
        with pytest.raises(messages.WireError):
            messages.decode(wrong, fleet.Membership)


def test_a_devices_id_follows_from_its_key_and_tells_nothing_of_it() -> None:
    assert fleet.device_id_of("key") == "d2c70e12b7a0646f92279"
    drawn = fleet.draw_key()
    assert drawn != fleet.draw_key() and drawn[:8] not in fleet.device_id_of(drawn)


def test_waiting_and_the_end_are_these_bytes_in_protocol_14() -> None:
    waiting = messages.Waiting("train", "mail", 2, 9, 1, 4, 12.5, ("hall",))
    body = (
        b'{"asked":4,"closes_in_s":12.5,"missing":1,"names":["hall"],"phase":"train",'
        b'"round_index":2,"rounds":9,"run_name":"mail"}'
    )
    assert messages.encode(waiting) == body
    assert messages.decode(body, messages.Waiting) == waiting
    over = messages.Over("r", "mail", "sha", 9, 4, {0: 0.25, 9: 0.5}, losses={0: 2.5})
    body = (
        b'{"accuracies":{"0":0.25,"9":0.5},"adapter_sha256":"sha","devices":4,'
        b'"ended":"rounds","kept_round":null,"losses":{"0":2.5},"rounds":9,"run_id":"r",'
        b'"run_name":"mail"}'
    )
    assert messages.encode(over) == body and messages.decode(body, messages.Over) == over
    for kept in (0, 9, None):
        assert replace(over, kept_round=kept).kept_round == kept
    for kept in (-1, 10):
        with pytest.raises(WrongInput, match="kept_round: 0 to rounds, or null"):
            replace(over, kept_round=kept)


def test_a_device_does_one_thing_next() -> None:
    both: dict[str, Any] = {"work": WORK, "waiting": messages.Waiting("idle")}
    for told in ({}, both):
        with pytest.raises(WrongInput, match="one of work, terms, over, waiting"):
            messages.Next(**told)


def test_a_failure_is_a_code_and_nothing_else() -> None:
    failed = messages.Report("w", "failed", failure="budget", is_leaving=True)
    body = messages.encode(failed)
    assert messages.decode(body, messages.Report) == failed
    for said in (b'"my pin is 4711"', b"null", b"7"):
        with pytest.raises(messages.WireError):
            messages.decode(body.replace(b'"budget"', said), messages.Report)
    with pytest.raises(messages.WireError, match="not a Report"):
        messages.decode(body.replace(b'"failed"', b'"done"'), messages.Report)
    with pytest.raises(messages.WireError):
        messages.decode(GOLDEN_REPORT.replace(b'"label":0.5', b'"my pin":1.0'), messages.Report)


def test_every_code_has_its_words() -> None:
    assert set(SAID) == set(get_args(Failure))


@pytest.mark.parametrize(
    "told",
    [
        GOLDEN_TOLD.replace(b"0,", b"", 1),
        GOLDEN_TOLD.replace(b"0,", b"0,0,", 1),
        GOLDEN_TOLD.replace(b"0,", b"-1,", 1),
        GOLDEN_TOLD.replace(b"0,", b"0.5,", 1),
        GOLDEN_TOLD.replace(b"0,", b"9007199254740992,", 1),
        GOLDEN_TOLD.replace(b"0,", b"NaN,", 1),
        GOLDEN_TOLD.replace(b"9", b"-9"),
        b'{"counts":[[]],"texts":9}',
        b'{"counts":[]}',
    ],
)
def test_counts_that_cannot_be_are_no_report(told: bytes) -> None:
    with pytest.raises(messages.WireError):
        messages.decode(
            GOLDEN_REPORT.replace(b'"confidences":null', b'"confidences":' + told), messages.Report
        )


@pytest.mark.parametrize("mean", [b"NaN", b"1e999", b"-Infinity", b"null", b'"0"'])
def test_means_are_finite_numbers(mean: bytes) -> None:
    means = b'"mean_log_probabilities":'
    with pytest.raises(messages.WireError):
        messages.decode(
            GOLDEN_REPORT.replace(means + b"[]", means + b"[" + mean + b"]"), messages.Report
        )


def test_an_update_is_these_bytes_in_protocol_14() -> None:
    body = encode_update(Update("w", 3, {"x": np.array([1.0, -2.0], np.float32)}))
    assert body == GOLDEN_UPDATE
    update = decode_update(GOLDEN_UPDATE)
    assert (update.work_id, update.num_examples) == ("w", 3)
    assert update.delta["x"].tolist() == [1.0, -2.0]


def test_an_update_of_an_older_protocol_is_read_from_a_store_alone() -> None:
    older = GOLDEN_UPDATE.replace(b'\\"protocol\\":14', b'\\"protocol\\":13')
    with pytest.raises(messages.WireError, match=r"protocol 13, 14 expected.*; install the same"):
        decode_update(older)
    assert decode_update(older, since=UPDATES_SINCE).work_id == "w"


def test_equal_updates_are_equal_bytes() -> None:
    update = Update("w", 3, {"b": np.ones(3, np.float32), "a": np.ones((2, 2), np.float32)})
    swapped = Update("w", 3, dict(reversed(update.delta.items())))
    assert encode_update(update) == encode_update(swapped)


@given(st.binary(max_size=300))
def test_garbage_ends_in_a_wire_error(body: bytes) -> None:
    for decode in (decode_update, decode_adapter):
        with pytest.raises(messages.WireError):
            decode(body)
    for kind in (messages.Next, messages.Report, fleet.Enrol, fleet.Terms, fleet.Membership):
        with pytest.raises(messages.WireError):
            messages.decode(body, kind)


@given(st.data())
def test_a_damaged_update_is_refused_or_has_the_same_names(data: st.DataObject) -> None:
    body = bytearray(encode_update(Update("w", 3, {"x": np.ones(4, np.float32)})))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] ^= data.draw(st.integers(1, 255))
    try:
        update = decode_update(bytes(body))
    except messages.WireError:
        return
    assert all(np.isfinite(tensor).all() for tensor in update.delta.values())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_delta_that_is_not_finite_is_named(value: float) -> None:
    body = encode_adapter({"x": np.array([value], np.float32)})
    with pytest.raises(messages.WireError, match="'x' holds NaN or infinity"):
        decode_adapter(body)


def test_other_parameters_are_named() -> None:
    reference = {"x": (2, 2)}
    with pytest.raises(messages.WireError, match="'y' is not expected"):
        check_same_parameters({"x": np.ones((2, 2)), "y": np.ones(1)}, reference)
    with pytest.raises(messages.WireError, match="'x' is missing"):
        check_same_parameters({}, reference)
    with pytest.raises(messages.WireError, match=r"'x' has shape \(4,\), not \(2, 2\)"):
        check_same_parameters({"x": np.ones(4)}, reference)


def test_the_digest_is_rfc_9530s() -> None:
    # The example of RFC 9530, appendix B.1: the body {"hello": "world"} and a newline.
    expected = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
    assert digest_header(sha256(b'{"hello": "world"}\n')) == expected


OVER = messages.Over("r", "run", "sha", 1, 1)


@pytest.mark.parametrize("losses", [{-1: 1.0}, {0: float("inf")}, {0: 1.0, 2: float("nan")}])
def test_the_losses_of_a_run_are_finite_and_of_rounds(losses: dict[int, float]) -> None:
    with pytest.raises(WrongInput, match="losses: finite numbers by round, 0 or more"):
        replace(OVER, losses=losses)


@pytest.mark.parametrize("bad", ["", ".", "a/../b", "..", "a/b", "a\\b", "a\n", "é", "x" * 129])
def test_an_id_that_leads_elsewhere_is_no_id(bad: str) -> None:
    for message, names in (
        (WORK, ("work_id", "run_id", "adapter_sha256")),
        (TERMS, ("run_id",)),
        (OVER, ("run_id", "adapter_sha256")),
    ):
        for name in names:
            body = msgspec.json.encode(msgspec.to_builtins(message) | {name: bad})
            with pytest.raises(messages.WireError, match=f"{name}: 1 to 128 letters"):
                messages.decode(body, type(message))


@pytest.mark.parametrize("bad", ["\x1b[2J", "two\nlines", "x" * 300])
def test_what_would_spoil_a_terminal_is_no_name(bad: str) -> None:
    for message, told in (
        (fleet.Enrolled(14, "d", "pi"), {"name": bad}),
        (TERMS, {"run_name": bad}),
        (OVER, {"run_name": bad}),
        (messages.Waiting("train"), {"run_name": bad}),
        (messages.Waiting("train"), {"names": ["pi", bad]}),
    ):
        body = msgspec.json.encode(msgspec.to_builtins(message) | told)
        with pytest.raises(messages.WireError, match="printable characters are expected"):
            messages.decode(body, type(message))
