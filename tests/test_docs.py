"""The examples of the README and of every page run as they are printed; the built site asks nothing of the network."""

import html.parser
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import controlvae as cv

ROOT = Path(cv.__file__).parent.parent
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "```python" in page.read_text()
)


def examples(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def readers_own():
    """What the pages take as given: a reader's model, data and losses."""
    torch.manual_seed(0)
    data = (torch.rand(4096, 64) < torch.rand(16, 64).repeat(256, 1)).float()

    def make_model():
        return torch.nn.ModuleDict(
            {"encoder": torch.nn.Linear(64, 16), "decoder": torch.nn.Linear(8, 64)}
        )

    def batches(steps):
        return (data[torch.randint(len(data), (128,))] for _ in range(steps))

    def encode(model, x):
        return model["encoder"](x).chunk(2, dim=1)

    def decode(model, mean, log_variance):
        return model["decoder"](mean + torch.exp(log_variance / 2) * torch.randn_like(mean))

    def losses(model, x):
        mean, log_variance = encode(model, x)
        logits = decode(model, mean, log_variance)
        recon = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
        return recon, (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2 / len(x)

    model = make_model()
    return {
        "cv": cv,
        "torch": torch,
        "F": F,
        "make_model": make_model,
        "batches": batches,
        "losses": losses,
        "encode": encode,
        "decode": decode,
        "model": model,
        "loader": list(batches(5)),
        "optimiser": torch.optim.Adam(model.parameters(), lr=0.01),
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = readers_own()
    for example in examples(page):
        exec(compile(example, str(page), "exec"), names)


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if not link.startswith("http") and not (page.parent / link).exists():
                broken.append(f"{page.name}: {link}")
    assert not broken


class _Outside(html.parser.HTMLParser):
    """Everything a browser would fetch from elsewhere to show a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if (
                tag != "a"
                and name in ("src", "href", "srcset")
                and re.match(r"(https?:)?//", value or "")
            ):
                self.found.append(f"{tag} {name}={value}")


def test_the_site_needs_no_network():
    """Of the site that `make docs` leaves; nothing to look at where it has not been built."""
    pages = sorted((ROOT / "site").glob("**/*.html"))
    if not pages:
        pytest.skip("no site/: make docs builds it")
    for page in pages:
        outside = _Outside()
        outside.feed(page.read_text())
        assert not outside.found, page
