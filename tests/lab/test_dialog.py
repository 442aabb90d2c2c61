"""Dialogs: contexts and responses as numbers, the conditional VAE, and a run from training to chat."""

import gzip
import json

import numpy as np
import pytest
import torch
from command import controlvae, within

import controlvae as cv
from controlvae.errors import UserError
from controlvae.lab.api.chat import chat
from controlvae.lab.config import override, preset
from controlvae.lab.data.bucketing import BucketOrder
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.data.text import dialog_file, switchboard
from controlvae.lab.data.text.dialogs import (
    DialogVocabulary,
    Utterance,
    build_dialog_dataset,
    merge_turns,
)
from controlvae.lab.data.text.synthetic_dialog import draw_dialogs, small_talk_dataset
from controlvae.lab.data.text.vocabulary import PAD, UNK
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.evaluation.dialog import generate_responses
from controlvae.lab.evaluation.evaluate import measure_run
from controlvae.lab.plots.samples import make_sample_grid
from controlvae.lab.reports.page import write_report
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import load_run, on_test_examples
from controlvae.metrics import self_bleu

TALK = [
    {
        "A": {"age": 50, "education": " 3", "sex": ' "MALE"'},
        "B": {"age": 20, "education": " 9", "sex": ' "FEMALE"'},
        "topic": ' "PETS"',
        "utts": [
            ["A", "It's a cat", ["statement", []]],
            ["A", "you know?", ["question", []]],
            ["B", "uh-huh", ["yes", [0.1]]],
            ["A", "  ", ["statement", []]],
            ["B", "a very very old cat", ["statement", []]],
        ],
    },
    {"topic": "rain", "utts": [["B", "rain"], ["A", "a cat", "statement"]]},
]
TINY = [
    "data.dialogs=60",
    "training.steps=40",
    "training.log_every=5",
    "training.batch=16",
    "model.context=16",
]


def dialogs(path, *objects):
    path.write_text("\n".join(map(json.dumps, objects)))
    return dialog_file.read_dialogs(path)


@pytest.fixture(scope="module")
def talk():
    return small_talk_dataset(40)


# Data


def test_words_are_those_of_nltks_tokenizer():
    nltk = pytest.importorskip("nltk.tokenize")
    text = "It's 7.5 o'clock -- isn't it?! uh-huh, #1 (naïve) \t x_y..."
    assert dialog_file.split_words(text) == nltk.WordPunctTokenizer().tokenize(text.lower())


def test_a_response_has_what_was_said_before_it_and_by_whom(tmp_path):
    read = dialogs(tmp_path / "d.jsonl", *TALK)
    examples = build_dialog_dataset(read, DialogVocabulary.build(read), 2, 4, "here", "all")
    assert (
        len(examples) == 4
    )  # an utterance without words was not said, and a first one answers nothing
    x = examples.batch(torch.arange(4))
    shown = [[examples.to_text(row) for row in rows if row[0] != PAD] for rows in x.context]
    assert shown == [["it ' s a"], ["it ' s a", "you know ?"], ["you know ?", "uh - huh"], ["rain"]]
    assert [examples.to_text(row) for row in x.response] == [
        "you know ?",
        "uh - huh",
        "a very very old",
        "a cat",
    ]
    assert x.floors.tolist() == [[1, 0], [0, 0], [0, 1], [0, 0]]
    assert [examples.names.acts[act] for act in x.act] == [
        "question",
        "yes",
        "statement",
        "statement",
    ]
    assert [examples.names.topics[topic] for topic in x.topic] == ["pets", "pets", "pets", "rain"]
    man, woman = (
        torch.tensor([0.5, 1, 0, 1]),
        torch.tensor([0.2, 0, 1, 0]),
    )  # 9 is an education not known
    assert torch.equal(
        x.profiles[:3], torch.stack([torch.stack(p) for p in [(man, woman), *[(woman, man)] * 2]])
    )
    assert not x.profiles[3].any()
    assert "2 of 6 utterances cut to 4 words" in examples.source
    assert examples.lengths.tolist() == [[5, 4], [5, 4], [4, 5], [2, 3]]
    with pytest.raises(ValueError, match=r"widths must be \[5, 5\]"):
        examples.batch(torch.arange(3), (5, 4))
    few = build_dialog_dataset(
        read, DialogVocabulary.build(read, max_words=1), 2, None, "here", "all"
    )
    assert int((few.tokens == UNK).sum()) == 16
    assert "16 words (84.2%) outside the vocabulary of 5" in few.source


def test_what_is_asked_is_what_was_said():
    examples = small_talk_dataset(3)
    said = [
        Utterance(0, dialog_file.split_words("does the cook stir the soup ?")),
        Utterance(1, ["zzz", "who", "knows"]),
    ]
    x = examples.make_context([*said * 3, said[0]], "kitchen")
    assert [examples.to_text(row) for row in x.context[0]] == [
        "<UNK> who knows",
        "does the cook stir the soup ?",
        "<UNK> who knows",
        "does the cook stir the soup ?",
    ]
    assert x.floors.tolist() == [[1, 0, 1, 0]]
    assert examples.names.topics[x.topic.item()] == "kitchen"


def test_batches_are_of_like_contexts_and_like_responses(talk):
    order = BucketOrder(talk.lengths, 16, seed=1, multiple=4)
    taken = torch.cat([order.indices(step) for step in range(order.steps_per_epoch)])
    assert len(taken.unique()) == len(taken)
    for step in range(order.steps_per_epoch):
        indices, widths = order.indices(step), order.width(step)
        assert (talk.lengths[indices].amax(0) <= torch.tensor(widths)).all()
        narrow, wide = talk.batch(indices, widths), talk.batch(indices)
        assert torch.equal(wide.context[:, :, : widths[0]], narrow.context)
        assert not wide.context[:, :, widths[0] :].any()
        assert torch.equal(wide.response[:, : widths[1]], narrow.response)
    spread = [
        talk.lengths[order.indices(step)].float().std(0) for step in range(order.steps_per_epoch)
    ]
    assert (torch.stack(spread).mean(0) < 0.7 * talk.lengths.float().std(0)).all()


def test_small_talk_is_drawn_the_same_each_time_and_no_word_is_strange():
    assert draw_dialogs(9, 1)[:4] == draw_dialogs(4, 1) != draw_dialogs(4, 2)
    for part in ("train", "test"):
        examples = small_talk_dataset(300, split=part)
        assert int((examples.tokens == UNK).sum()) == 0
    acts = {utterance.act for dialog in draw_dialogs(50) for utterance in dialog.utterances}
    assert acts | {""} == set(examples.names.acts)


def test_a_file_of_dialogs_is_read_zipped_or_not_and_divided_by_dialogs(tmp_path):
    lines = "\n".join(
        json.dumps({"utts": [["A", f"word{i}"], ["B", "yes"], ["A", "no"]]}) for i in range(20)
    )
    (tmp_path / "d.jsonl").write_text(lines)
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    train, test = (
        dialog_file.dialog_file("d.jsonl", part, 0.25, tmp_path) for part in ("train", "test")
    )
    assert (len(train), len(test), test.split) == (30, 10, "test: 5 of 20 dialogs")
    assert train.vocabulary == test.vocabulary
    assert "5 words" in test.source  # the first word of each is new
    zipped = dialog_file.dialog_file("d.jsonl.gz", "train", 0.25, tmp_path)
    assert torch.equal(zipped.tokens, train.tokens)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no dialogs"),
        (b'{"utts": [["A", "x"]]}\n{', "line 2 must be a JSON object"),
        (b'{"utts": 3}', "must be an object with utts"),
        (b'{"utts": [["A"]]}', r"expected \[speaker, text"),
        (b'{"utts": [["A", "x"], ["B", "x"], ["C", "x"]]}', "3 speakers"),
        (b'{"utts": [["A", "x"]]}', "no utterance that answers"),
        (b"a\xff", "cannot be read"),
        (b"\x1f\x8bnonsense", "cannot be read"),
    ],
)
def test_bad_dialogs_are_refused_with_a_reason(tmp_path, content, message):
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message):
        dialog_file.dialog_file("bad.jsonl", held_out=0, root=tmp_path)


def test_turn_has_the_act_of_its_longest_part(tmp_path):
    merged = [merge_turns(dialog) for dialog in dialogs(tmp_path / "d.jsonl", *TALK)]
    turns = [(turn.speaker, " ".join(turn.words), turn.act) for turn in merged[0].utterances]
    assert turns == [
        (0, "it ' s a cat you know ?", "statement"),
        (1, "uh - huh a very very old cat", "statement"),
    ]
    assert merged[0].topic == "pets"
    assert merged[0].profiles[0][0] == 0.5
    assert len(merged[1].utterances) == 2


def test_acts_are_joined_in_training_dialogs_of_the_act_corpus_alone(tmp_path, monkeypatch):
    lines = "\n".join(map(json.dumps, TALK))
    for name in ("train_swda", "valid", "test"):
        (tmp_path / f"{name}.jsonl").write_text(lines)
    monkeypatch.setenv("CONTROLVAE_DATA", str(tmp_path))
    joined = switchboard.switchboard(join_acts=True)
    assert len(joined.tokens) == 4
    assert "the acts of a turn joined" in joined.source
    assert len(switchboard.switchboard().tokens) == 6
    assert len(switchboard.switchboard("valid", join_acts=True).tokens) == 6
    (tmp_path / "train.jsonl").write_text(lines)  # the published file
    assert len(switchboard.switchboard(join_acts=True).tokens) == 6


def test_switchboard_is_all_there():
    if switchboard.describe_switchboard() == "no file":
        pytest.skip("no Switchboard in the data folders; set CONTROLVAE_DATA")
    test = switchboard.switchboard("test")
    assert (len(test), len(test.vocabulary)) == (
        5_481,
        10_004,
    )  # as many contexts as the released code samples
    assert "cut to 38 words" in test.source


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_bleu_is_nltks(n):
    nltk = pytest.importorskip("nltk.translate.bleu_score")
    spoken = [list(u.words) for dialog in draw_dialogs(40) for u in dialog.utterances]
    pairs = [*zip(spoken[:100], zip(spoken[100:200], spoken[5:105], strict=True), strict=True)]
    pairs += [
        (["a"], [["a"]]),
        (["a", "b"], [["c"]]),
        ([], [["a"]]),
        (["a"] * 5, [["a", "a"], ["a"] * 9]),
    ]
    ours = cv.metrics.bleu([sentence for sentence, _ in pairs], [others for _, others in pairs], n)
    smooth, weights = nltk.SmoothingFunction().method1, (1 / n,) * n
    theirs = [
        nltk.sentence_bleu(list(others), sentence, weights, smooth) for sentence, others in pairs
    ]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


# A run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("dialog") / "run"
    words = [
        "train",
        "dialog-quick",
        *(word for pair in TINY for word in ("--set", pair)),
        "--run",
        place,
    ]
    done = within(*words, cwd=place.parent)
    assert done.returncode == 0, done.stderr
    return load_run(RunFolder(place))


def test_training_goes_on_from_a_snapshot_as_if_never_stopped():
    experiment = override(preset("dialog-quick"), TINY)
    examples = load_dataset(experiment.data)
    straight, before, after = (
        EagerEngine([experiment], examples, torch.device("cpu")) for _ in range(3)
    )
    rows = straight.advance(12)
    before.advance(5)
    after.restore(0, 5, before.snapshot(0))
    assert torch.equal(after.advance(7), rows[5:])
    assert all(value.equal(after.snapshot(0)[name]) for name, value in straight.snapshot(0).items())


def test_a_run_over_dialogs_is_evaluated_with_every_perplexity_by_name(run):
    metrics = measure_run(run, 100, importance_samples=20)
    dialog = metrics["dialog"]
    assert metrics["split"] == "test: 60 dialogs"
    assert dialog["perplexity"] > dialog["reconstruction_perplexity"] > 1
    assert dialog["paper_perplexity"] == pytest.approx(dialog["reconstruction_perplexity"], rel=0.2)
    assert metrics["iwae"]["bound"] > metrics["iwae"]["elbo_of_the_same"]
    assert metrics["iwae"]["elbo_of_the_same"] == pytest.approx(metrics["elbo"], rel=0.2)
    assert dialog["responses"] == 10 * dialog["contexts"]
    assert dialog["bleu_2_recall"] >= dialog["bleu_2_precision"]
    page = write_report([run.folder], run.folder.report_file).read_text()
    assert "responses of the model" in page
    assert "falls as the KL rises" in page


def test_self_bleu_of_the_paper_takes_all_responses_to_the_first_contexts(run):
    dialog = measure_run(run, 20, importance_samples=0)["dialog"]
    test = on_test_examples(run)
    first = generate_responses(test, torch.arange(100)).responses
    words = [response.replace("<unk>", "").split() for several in first for response in several]
    assert dialog["paper_self_bleu_2"] == self_bleu(words, 2, len(words))
    assert dialog["paper_self_bleu_of"].startswith("all 1,000 responses to the first 100 contexts")


def test_perplexity_of_the_paper_is_measured_on_the_validation_split(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTROLVAE_DATA", str(tmp_path))
    for name, count in (("train_swda", 60), ("valid", 4), ("test", 6)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, TALK * count)))
    settings = ["data=Switchboard()", "training.steps=4", "training.batch=8", *TINY[2:3], TINY[4]]
    experiment = override(preset("dialog-quick"), settings)
    run = cv.lab.train(experiment, run=tmp_path / "run", device="cpu")
    dialog = measure_run(run, 50, importance_samples=0)["dialog"]
    assert "on 16 responses of the validation split" in dialog["validation_perplexity_of"]
    assert dialog["validation_perplexity"] > 1
    (tmp_path / "valid.jsonl").unlink()
    dialog = measure_run(run, 50, importance_samples=0)["dialog"]
    assert "no valid split of Switchboard" in dialog["validation_perplexity_of"]
    assert "validation_perplexity" not in dialog


def test_chat_is_deterministic(run):
    done = controlvae(
        "chat", run.folder.path, "--device", "cpu", input="does the cook stir the soup ?\n\nzzz\n"
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 10)
    assert "unknown words: zzz" in done.stderr
    question = "does the cook stir the soup ?"
    replies = [reply.responses for reply in chat(run, [question, "", "zzz"])]
    numbered = [f"{n:3d}  {text or '...'}" for reply in replies for n, text in enumerate(reply, 1)]
    assert numbered == done.stdout.splitlines()
    (few,), (many,) = (list(chat(run, [question], count=n, temperature=1.0)) for n in (2, 18))
    assert (few.responses, len(many.responses)) == (many.responses[:2], 18)
    with pytest.raises(UserError, match="'kitchen'"):
        next(chat(run, [question], topic="kitchn"))
    with pytest.raises(UserError, match="see controlvae chat"):
        make_sample_grid(run)


def test_dialog_model_works_without_its_dialogs(tmp_path):
    file, place = tmp_path / "talk.jsonl", tmp_path / "run"
    dialogs(file, *(20 * TALK))
    sets = [f"data=DialogFile('{file}')", *TINY[1:]]
    words = [
        "train",
        "dialog-quick",
        *(word for pair in sets for word in ("--set", pair)),
        "--run",
        place,
    ]
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    talk = ["chat", place, "--topic", "rain", "--device", "cpu"]
    heard = controlvae(*talk, input="a cat\n").stdout
    file.unlink()
    assert controlvae(*talk, input="a cat\n").stdout == heard != ""
    refused = within("evaluate", place, "--device", "cpu", cwd=tmp_path)
    assert refused.returncode == 2
    assert "talk.jsonl" in refused.stderr.splitlines()[-1]


def test_dialogs_and_their_model_go_together():
    with pytest.raises(UserError, match="dialogs with model=DialogVAE"):
        override(preset("dialog-quick"), ["model=TextVAE()", "objective=Elbo(tokens)"])
    with pytest.raises(UserError, match="BagOfWords is for dialogs"):
        override(preset("text-quick"), ["objective=BagOfWords()"])
