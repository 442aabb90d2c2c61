"""The paper's tables and figures as values, and some it lacks: what it printed, and the preset that should give it."""

from dataclasses import dataclass, field

from controlvae.errors import unknown_name_error


@dataclass(frozen=True)
class Printed:
    """A number of the paper: its mean over seeds, and the spread where it is printed."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Row:
    """One method of a table."""

    method: str
    preset: str | None  # None: a user's own, set beside the others
    printed: dict[str, Printed] = field(
        default_factory=dict
    )  # by column; what the paper lacks is left out

    @property
    def key(self) -> str:
        """Under which its runs are found."""
        return self.preset or self.method


@dataclass(frozen=True)
class PaperTable:
    """A table, of the paper or beside it. A column is a path into `metrics.json`, written with dots."""

    name: str
    title: str
    columns: dict[str, str]  # heading -> path
    rows: tuple[Row, ...]
    note: str = ""  # what a reader of the numbers must know
    terms: str = ""  # of data, model and objective, stands behind the title where all runs have their presets'
    more: dict[str, str] = field(default_factory=dict)  # columns of the CSV alone


def _rmig(
    x: float, y: float, shape: float, scale: float, orientation: float, mean: float
) -> dict[str, Printed]:
    values = {
        "x": x,
        "y": y,
        "shape": shape,
        "scale": scale,
        "orientation": orientation,
        "RMIG": mean,
    }
    return {name: Printed(value) for name, value in values.items()}


_RMIG_COLUMNS = {
    **{name: f"rmig.per_factor.{name}" for name in ("x", "y", "shape", "scale", "orientation")},
    "RMIG": "rmig.score",
}

# Tables 1 and 2 as they were published.
_UNLIKE = (
    "As published, methods differ in more than their law. ControlVAE: 1,500,000 steps at a learning rate of 0.0001. "
    "β-VAE: as many at 0.0005, on a network of its own. FactorVAE and Control-FactorVAE: 700,000 at 0.0001, on a third "
    "network, with a critic. `table-matched` and `table-short` give all of them one network, learning rate and length."
)
_TABLES = [
    PaperTable(
        "table-mig",
        "Table 1: MIG (Chen et al.: sampled, four factors)",
        {"MIG": "mig_sampled.score"},
        (
            Row("ControlVAE (KL = 16)", "shapes2d-control-16", {"MIG": Printed(0.5628, 0.0222)}),
            Row("ControlVAE (KL = 18)", "shapes2d-control-18", {"MIG": Printed(0.5432, 0.0281)}),
            Row("Control-FactorVAE", "shapes2d-control-factor", {"MIG": Printed(0.5620, 0.0348)}),
            Row("β-VAE (β = 100)", "shapes2d-beta-100", {"MIG": Printed(0.5138, 0.0371)}),
            Row("FactorVAE (γ = 10)", "shapes2d-factor", {"MIG": Printed(0.5625, 0.0443)}),
        ),
        _UNLIKE,
    ),
    PaperTable(
        "table-rmig",
        "Table 2: RMIG by factor (Do & Tran, 100 bins, five factors)",
        _RMIG_COLUMNS,
        (
            Row(
                "ControlVAE (KL = 16)",
                "shapes2d-control-16",
                _rmig(0.7490, 0.7413, 0.0958, 0.6288, 0.1037, 0.4637),
            ),
            Row(
                "ControlVAE (KL = 18)",
                "shapes2d-control-18",
                _rmig(0.7229, 0.7221, 0.0701, 0.6404, 0.0582, 0.4427),
            ),
            Row(
                "Control-FactorVAE",
                "shapes2d-control-factor",
                _rmig(0.7273, 0.7442, 0.1467, 0.6996, 0.0680, 0.4772),
            ),
            Row(
                "β-VAE (β = 100)",
                "shapes2d-beta-100",
                _rmig(0.7112, 0.7014, 0.1325, 0.5386, 0.0819, 0.4331),
            ),
            Row(
                "FactorVAE (γ = 10)",
                "shapes2d-factor",
                _rmig(0.7482, 0.7276, 0.1383, 0.6262, 0.1412, 0.4763),
            ),
        ),
        _UNLIKE,
    ),
    PaperTable(
        "ablation-target",
        "Table 6: RMIG against the set point",
        {"RMIG": "rmig.score"},
        tuple(
            Row(f"KL = {stop}", f"shapes2d-control-{stop}", {"RMIG": Printed(mean)})
            for stop, mean in ((16, 0.4637), (17, 0.4396), (18, 0.4427), (19, 0.4218))
        ),
    ),
    PaperTable(
        "ablation-step",
        "Table 7: RMIG against the step of the ramp (KL = 16)",
        {"RMIG": "rmig.score"},
        (
            Row("s = 0.05", "shapes2d-control-16-step-0.05", {"RMIG": Printed(0.4366)}),
            Row("s = 0.1", "shapes2d-control-16-step-0.1", {"RMIG": Printed(0.433)}),
            Row("s = 0.15", "shapes2d-control-16", {"RMIG": Printed(0.4637)}),
            Row("s = 0.2", "shapes2d-control-16-step-0.2", {"RMIG": Printed(0.4304)}),
        ),
    ),
]


# Not in the paper: what a reader of its first two tables would ask for next.
_TERMS_COLUMNS = {
    "MIG": "mig_sampled.score",
    "RMIG": "rmig.score",
    "DCI": "dci.disentanglement",
    "FactorVAE score": "factor_vae_score.score",
    "reconstruction": "reconstruction",
    "KL": "kl",
}
_DCI = "DCI is the first of its three numbers, disentanglement."
_TABLES += [
    PaperTable(
        "table-prices",
        "Beyond the paper: three times the KL weight from the fifth latent on until step 450,000",
        _TERMS_COLUMNS,
        (
            Row("ControlVAE (KL = 18)", "shapes2d-control-18"),
            Row("the same with KL weights", "shapes2d-weighted-18"),
            Row("and staggered latents, with an initial β of 80", "shapes2d-staggered-18"),
        ),
        _DCI,
    ),
    PaperTable(
        "table-matched",
        "Beyond the paper: every method on ControlVAE's network, batch, learning rate and steps",
        _TERMS_COLUMNS,
        tuple(
            Row(method, f"shapes2d-{name}")
            for method, name in (
                ("ControlVAE (KL = 16)", "control-16"),
                ("Lagrange multiplier (KL = 16)", "lagrange-16"),
                ("DynamicVAE (KL = 16)", "dynamic-16"),
                ("β-VAE (γ = 100, KL = 16)", "beta-100-matched"),
                ("β-VAE (β = 4)", "beta"),
                ("VAE", "vae"),
                ("β-TCVAE (β = 6)", "beta-tc"),
                ("FactorVAE (γ = 10)", "factor-matched"),
                ("Control-FactorVAE (TC = 0.3)", "control-factor-matched"),
            )
        ),
        _DCI,
    ),
    PaperTable(
        "table-laptop",
        "Beyond the paper: four methods on small pictures, on one network, batch, learning rate and as many steps",
        _TERMS_COLUMNS,
        tuple(
            Row(method, f"shapes2d-{name}")
            for method, name in (
                ("ControlVAE (set point 10)", "laptop"),
                ("FactorVAE (γ = 10)", "laptop-factor"),
                ("β-VAE (β = 4)", "laptop-beta"),
                ("VAE", "laptop-vae"),
            )
        ),
        _DCI,
    ),
    PaperTable(
        "table-short",
        "Beyond the paper: every method as long, on one network, batch, learning rate and pictures",
        _TERMS_COLUMNS,
        tuple(
            Row(method, f"shapes2d-{name}")
            for method, name in (
                ("ControlVAE (set point 16)", "short"),
                ("ControlVAE (set point 16), β from 1", "short-from-one"),
                ("Lagrange multiplier (set point 16)", "short-lagrange"),
                ("β-VAE (γ = 100, set point 16)", "short-beta-100"),
                ("β-VAE (β = 4)", "short-beta"),
                ("β-VAE (β = 10.5, ControlVAE's mean)", "short-mean"),
                ("VAE", "short-vae"),
                ("DynamicVAE (set point 16)", "short-dynamic"),
                ("β-TCVAE (β = 6)", "short-beta-tc"),
                ("FactorVAE (γ = 10)", "short-factor"),
                ("Control-FactorVAE (TC = 0.3)", "short-control-factor"),
            )
        ),
        "A set point is what a law is given: with β at its bound of 1, or a ramp that has not ended, the KL is "
        f"below it. {_DCI}",
    ),
]


def _images(elbo: float, elbo_sd: float, fid: float, fid_sd: float) -> dict[str, Printed]:
    return {"ELBO": Printed(elbo, elbo_sd), "FID": Printed(fid, fid_sd)}


# One rule for all methods, and both of its readings: the last step, and the best by validation.
_IMAGE_COLUMNS = {
    "ELBO": "elbo",
    "FID": "fid.samples.score",
    "KL": "kl",
    "reconstruction": "reconstruction",
    "ELBO, best by validation": "best.elbo",
    "FID, best by validation": "best.fid.samples.score",
}
# An FID says little without what it is of.
_IMAGE_MORE = {
    "IWAE": "iwae.bound",
    "FID of reconstructions": "fid.reconstructions.score",
    "KID": "kid.samples.score",
    "KID of reconstructions": "kid.reconstructions.score",
    "SSIM": "likeness.ssim",
    "PSNR": "likeness.psnr",
    "FID pictures": "fid.pictures",
    "FID reference pictures": "fid.reference_pictures",
    "FID split": "fid.split",
    "FID extractor": "fid.extractor",
    "FID resize": "fid.resize",
}

_TABLES += [
    PaperTable(
        "table-cifar10",
        "Table 3: ELBO and FID on the CIFAR-10 test set",
        _IMAGE_COLUMNS,
        (
            Row("VAE", "cifar10-vae", _images(-372.10, 0.64, 135.25, 0.31)),
            Row("VAE with KL warm-up", "cifar10-warm-up"),
            Row(
                "ControlVAE (KL = 145)", "cifar10-control-145", _images(-365.18, 0.37, 122.36, 0.33)
            ),
            Row(
                "Lagrange multiplier (KL = 145)",
                "cifar10-lagrange-145",
                _images(-366.87, 0.90, 124.76, 0.58),
            ),
            Row("β-VAE (KL = 145)", "cifar10-beta-145", _images(-388.82, 0.76, 134.05, 0.54)),
        ),
        terms="128x128, sum of squares, 100 latents",
        more=_IMAGE_MORE,
    ),
    PaperTable(
        "table-celeba",
        "Table 4: ELBO and FID on CelebA",
        _IMAGE_COLUMNS,
        (
            Row("VAE", "celeba-vae", _images(-472.21, 0.52, 89.33, 0.51)),
            Row("VAE with KL warm-up", "celeba-warm-up"),
            Row("ControlVAE (KL = 155)", "celeba-control-155", _images(-468.93, 0.71, 86.91, 0.49)),
            Row("ControlVAE (KL = 190)", "celeba-control-190"),
            Row(
                "Lagrange multiplier (KL = 155)",
                "celeba-lagrange-155",
                _images(-469.09, 0.85, 87.01, 0.37),
            ),
            Row("β-VAE (KL = 155)", "celeba-beta-155", _images(-494.06, 0.80, 90.27, 0.40)),
        ),
        terms="here the first 10,000 faces at 128x128, a tenth of them held out",
        more=_IMAGE_MORE,
    ),
    PaperTable(
        "ablation-batch",
        "Table 8: ELBO against the batch size (ControlVAE, CIFAR-10, KL = 145)",
        {"ELBO": "elbo", "ELBO, best by validation": "best.elbo"},
        (
            Row("batch 50", "cifar10-control-145-batch-50", {"ELBO": Printed(-375.99, 1.82)}),
            Row("batch 100", "cifar10-control-145", {"ELBO": Printed(-368.18, 1.00)}),
            Row("batch 150", "cifar10-control-145-batch-150", {"ELBO": Printed(-370.23, 0.82)}),
        ),
    ),
    PaperTable(
        "ablation-latent",
        "Table 9: ELBO against the number of latents (ControlVAE, CIFAR-10, KL = 145)",
        {"ELBO": "elbo", "ELBO, best by validation": "best.elbo"},
        (
            Row("z = 100", "cifar10-control-145", {"ELBO": Printed(-365.18, 0.37)}),
            Row("z = 200", "cifar10-control-145-latents-200", {"ELBO": Printed(-361.80, 0.86)}),
            Row("z = 500", "cifar10-control-145-latents-500", {"ELBO": Printed(-364.17, 1.25)}),
        ),
    ),
]


def _dialog(
    dis1: Printed, dis2: Printed, bleu2: Printed, bleu3: Printed, ppl: Printed
) -> dict[str, Printed]:
    return {"Dis-1": dis1, "Dis-2": dis2, "self-BLEU-2": bleu2, "self-BLEU-3": bleu3, "PPL": ppl}


_TABLES += [
    PaperTable(
        "table-dialog",
        "Table 5: diversity and perplexity of responses on Switchboard",
        {
            "Dis-1": "dialog.distinct_1",
            "Dis-2": "dialog.distinct_2",
            "self-BLEU-2": "dialog.self_bleu_2",
            "self-BLEU-3": "dialog.self_bleu_3",
            "PPL": "dialog.paper_perplexity",
            "PPL, ELBO": "dialog.perplexity",
            "PPL, IWAE": "dialog.iwae_perplexity",
            "KL": "kl",
            "responses": "dialog.responses",
        },
        (
            Row(
                "ControlVAE (KL = 35)",
                "dialog-control-35",
                _dialog(
                    Printed(6_270, 41),
                    Printed(95_860, 1_020),
                    Printed(0.663, 0.012),
                    Printed(0.447, 0.013),
                    Printed(8.81, 0.05),
                ),
            ),
            Row(
                "ControlVAE (KL = 25)",
                "dialog-control-25",
                _dialog(
                    Printed(6_100, 60),
                    Printed(83_150, 4_000),
                    Printed(0.698, 0.006),
                    Printed(0.495, 0.014),
                    Printed(12.47, 0.07),
                ),
            ),
            Row(
                "cost annealing",
                "dialog-cost",
                {
                    **_dialog(
                        Printed(5_710, 87),
                        Printed(69_600, 1_530),
                        Printed(0.721, 0.010),
                        Printed(0.536, 0.008),
                        Printed(16.82, 0.11),
                    ),
                    "KL": Printed(17),
                },
            ),
            Row(
                "cyclical annealing",
                "dialog-cyclical",
                {
                    **_dialog(
                        Printed(5_790, 81),
                        Printed(71_630, 2_040),
                        Printed(0.710, 0.007),
                        Printed(0.524, 0.008),
                        Printed(17.81, 0.33),
                    ),
                    "KL": Printed(21.5),
                },
            ),
        ),
        "Dis-n: distinct n-grams of all responses put end to end, counts that grow with their number (in the "
        "paper 54,810, ten to each test context). PPL, as the paper has it, is of the words of a response under a code "
        "of the posterior, which has read that response: what the code tells is not charged, so PPL falls as the KL "
        "rises whatever the model is worth. The two perplexities beside it charge the code, and the act of the "
        "response: they bound the model's own from above. The paper took its PPL on the validation part; these are of "
        "the test part.",
    ),
]

_PTB_ROWS = (
    Row("ControlVAE (KL = 1.5)", "ptb-control-1.5"),
    Row("ControlVAE (KL = 3)", "ptb-control-3"),
    Row("cost annealing, 20k", "ptb-cost-20k"),
    Row("cost annealing, 50k", "ptb-cost-50k"),
    Row("cyclical annealing, 4", "ptb-cyclical-4"),
    Row("cyclical annealing, 8", "ptb-cyclical-8"),
)
_TABLES += [
    PaperTable(
        "table-ptb",
        "Beside Figure 6: the test sentences of Penn Treebank, of which the paper prints no numbers",
        {
            "KL": "kl",
            "reconstruction": "reconstruction",
            "ELBO": "elbo",
            "the paper's curve": "text.paper_elbo",
            "IWAE": "iwae.bound",
            "ELBO of the same": "iwae.elbo_of_the_same",
            "perplexity, ELBO": "text.perplexity",
            "perplexity, IWAE": "text.iwae_perplexity",
            "active units": "active_units",
            "mutual information": "mutual_information.lower",
            "self-BLEU-2": "text.self_bleu_2",
            "ELBO, best by validation": "best.elbo",
            "IWAE, best by validation": "best.iwae.bound",
            "step of the best": "best.step",
        },
        (
            *_PTB_ROWS,
            Row("VAE", "ptb-vae"),
            Row("VAE, linear warm-up", "ptb-warm-up"),
            Row("VAE, free bits", "ptb-free-bits"),
        ),
        "Nats per sentence; perplexities are per token: words and ends of sentences. The paper's curve is "
        "−(reconstruction + β·KL) with the last β: what training maximises. A β below 1 flatters it, and it bounds "
        "nothing; the ELBO has β = 1. Both perplexities bound the model's own from above; IWAE is of fewer sentences, "
        "with the ELBO of those beside it. Of the mutual information this is the lower bound.",
    ),
]

TABLES = {table.name: table for table in _TABLES}


@dataclass(frozen=True)
class Against:
    """Two numbers of every run, one across and one up, as paths into `metrics.json`, and how to read the picture."""

    across: str
    up: str
    labels: tuple[str, str]
    reading: str


@dataclass(frozen=True)
class PaperFigure:
    """A figure, of the paper or beside it: its methods, in the order of its legend."""

    name: str
    title: str
    rows: tuple[Row, ...]
    latents_of: str = ""  # the preset whose latents are drawn one by one
    curves: tuple[str, ...] = ()  # columns of the log drawn against steps, a panel each
    against: Against | None = None  # a point for every run


_TERMS = Against(
    "reconstruction",
    "mig_sampled.score",
    ("reconstruction (nats per example)", "MIG, sampled"),
    "Better is up and to the left.",
)
_FIGURES = [
    PaperFigure(
        "figure-disentangling",
        "Figure 3: reconstruction and weight against steps, and KL per latent",
        TABLES["table-mig"].rows,
        latents_of="shapes2d-control-18",
    ),
    PaperFigure(
        "figure-traversals",
        "Figure 4: latent traversals in [-3, 3], rows ordered by KL",
        TABLES["table-mig"].rows,
    ),
    PaperFigure(
        "figure-mig",
        "Beyond the paper: MIG of every run against what its pictures lose",
        (
            *TABLES["table-mig"].rows,
            *(Row(f"ControlVAE (KL = {stop})", f"shapes2d-control-{stop}") for stop in (17, 19)),
            *(
                Row(f"KL = 16, steps of {step}", f"shapes2d-control-16-step-{step}")
                for step in (0.05, 0.1, 0.2)
            ),
            Row("KL = 18 with KL weights", "shapes2d-weighted-18"),
            Row("KL = 18, staggered latents", "shapes2d-staggered-18"),
            Row("β-VAE (γ = 100) on KL = 16's terms", "shapes2d-beta-100-matched"),
        ),
        against=_TERMS,
    ),
    PaperFigure(
        "figure-short",
        "Beyond the paper: the same for every method in 150,000 steps",
        TABLES["table-short"].rows,
        against=_TERMS,
    ),
    PaperFigure(
        "figure-cifar10",
        "Figure 5: ELBO, reconstruction and KL against steps on CIFAR-10",
        TABLES["table-cifar10"].rows,
        curves=("elbo", "reconstruction", "kl"),
    ),
    PaperFigure(
        "figure-celeba",
        "Beyond the paper: the same on CelebA",
        TABLES["table-celeba"].rows,
        curves=("elbo", "reconstruction", "kl"),
    ),
    PaperFigure(
        "figure-ptb",
        "Figure 6: KL, reconstruction, the true ELBO beside the paper's curve, weight and validation on Penn Treebank",
        _PTB_ROWS,
        curves=("kl", "reconstruction", "elbo", "objective", "beta", "validation"),
    ),
]

FIGURES = {figure.name: figure for figure in _FIGURES}


@dataclass(frozen=True)
class PaperExamples:
    """What models say, side by side, as the paper's appendix shows them."""

    name: str
    title: str
    rows: tuple[Row, ...]
    note: str = ""


_EXAMPLES = PaperExamples(
    "dialog-examples",
    "The appendix: responses of the four methods to the same contexts",
    TABLES["table-dialog"].rows,
    "Contexts are a fixed random choice of the test part; A and B speak, B responds. Codes are drawn from the prior, "
    "words are the likeliest of each. Switchboard's text belongs to the LDC: keep this file to yourself.",
)
PaperResult = PaperTable | PaperFigure | PaperExamples
RESULTS: dict[str, PaperResult] = {**TABLES, **FIGURES, _EXAMPLES.name: _EXAMPLES}


def paper_result(name: str) -> PaperResult:
    """The table, the figure or the examples of that name."""
    if name not in RESULTS:
        raise unknown_name_error("table or figure", name, RESULTS)
    return RESULTS[name]
