"""Corpus BLEU and MAUVE of what a text or dialog model writes."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.evaluation.dialog import generate_responses
from controlvae.lab.evaluation.metric import Selection
from controlvae.lab.evaluation.text import reconstruct_sentences, sample_sentences
from controlvae.lab.runs.loaded import LoadedRun, select_examples
from controlvae.metrics import corpus_bleu, mauve
from controlvae.metrics._packages import require

_TEXTS = 1_000, 200  # on a GPU and elsewhere
_MAX_TOKENS = 256  # of a text that MAUVE's language model reads


def measure_written(run: LoadedRun, selection: Selection) -> dict[str, Any]:
    """Measure corpus BLEU of reconstructions or responses, and MAUVE of samples or responses.

    Args:
        run: Trained run over sentences or dialogs.
        selection: Metrics to measure.

    Returns:
        The selected ones of the entries `corpus_bleu` and `mauve`.
    """
    measures = {"corpus_bleu": _corpus_bleu, "mauve": _mauve}
    results: dict[str, Any] = {}
    for key, measure in measures.items():
        if selection.wants(key):
            try:
                results[key] = measure(run, selection)
            except (UserError, ModuleNotFoundError, ValueError) as error:
                if not selection.may_skip:
                    raise UserError(str(error)) from None
                results[key] = {"skipped": str(error)}
    return results


def _corpus_bleu(run: LoadedRun, _: Selection) -> dict[str, Any]:
    """Return corpus BLEU against the data: of reconstructions, or of one response per context."""
    require("corpus BLEU", "sacrebleu", "sacrebleu")  # before any text is written
    count = min(run.example_budget(*_TEXTS), run.available)
    if isinstance(run.examples, DialogDataset):
        generated = generate_responses(run, count, 1)
        written = [responses[0] for responses in generated.responses]
        known, source = generated.references, "the likeliest response under a code of the prior"
    else:
        pairs = reconstruct_sentences(run, count)
        written, known = [pair.read_back for pair in pairs], [pair.sentence for pair in pairs]
        source = "reconstructions from the posterior mean by the likeliest words"
    result = corpus_bleu(written, [[sentence] for sentence in known])
    where = {"of": source, "examples": len(written), "split": run.examples.split}
    return {**result._asdict(), **where}


def _mauve(run: LoadedRun, selection: Selection) -> dict[str, Any]:
    """Return MAUVE of prior samples, or of one response per context, against the data."""
    require("MAUVE", "mauve", "mauve-text")
    model = selection.weights.get("mauve")
    if model is None:
        raise UserError(
            "MAUVE needs a language model on this machine: --weights mauve=FOLDER, a folder of "
            "Hugging Face, such as a copy of openai-community/gpt2-large"
        )
    count = min(run.example_budget(*_TEXTS), run.available)
    if isinstance(run.examples, DialogDataset):
        generated = generate_responses(run, count, 1)
        written = [responses[0] for responses in generated.responses]
        known = generated.references
    else:
        written = sample_sentences(run, count)
        assert isinstance(run.examples, SentenceDataset)
        rows = run.examples.batch(select_examples(run, count))
        known = [run.examples.to_text(row) for row in rows]
    network = _LanguageModel(Path(model), run.device)
    scores = asdict(mauve(network.features(known), network.features(written)))
    where = {"extractor": network.extractor, "examples": count, "split": run.examples.split}
    return {**scores, **where}


class _LanguageModel:
    """Language model of Hugging Face in a folder, whose last hidden state describes a text."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        transformers = require("MAUVE", "transformers", "transformers")
        if not folder.is_dir():
            raise UserError(f"no folder {folder} with a language model for MAUVE")
        self.extractor = f"last hidden state of {folder.name}"
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True
            )
            model = transformers.AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0][:100]
            raise UserError(f"{folder} holds no language model: {reason}") from None
        self.model = model.to(device).eval()
        self.device = device

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Tensor:
        """Return the hidden state of the last token of each text, (texts, width)."""
        rows = []
        for text in texts:  # one by one: no padding, whatever the tokeniser
            tokens = self.tokenizer.encode(text or " ")[:_MAX_TOKENS]
            ids = torch.tensor([tokens or [0]], device=self.device)
            rows.append(self.model(ids).last_hidden_state[0, -1].float().cpu())
        return torch.stack(rows)
