"""The disentanglement scores: how each is computed from codes, and which numbers tables show."""

from controlvae.lab.evaluation.disentanglement import DisentanglementScore
from controlvae.lab.evaluation.metric import Selection
from controlvae.metrics import beta_vae_score, factor_vae_score, mig_histogram, mig_sampled
from controlvae.metrics.disentanglement import (
    dci,
    dci_es,
    explicitness,
    infomec,
    mig_sup,
    modularity,
    rmig,
    sap,
)

# disentanglement_lib's numbers of examples take 25 s on a CPU core, most of it for DCI and InfoMEC.
# It takes 10,000 points for a histogram; here they are a random choice, like the rest.
DISENTANGLEMENT_SCORES = (
    DisentanglementScore(
        "mig_sampled",
        "MIG, sampled",
        lambda codes, progress: mig_sampled(
            codes.means,
            codes.log_variances,
            codes.ordered_classes,
            draws=codes.draws,
            factor_names=codes.ordered_names,
            device=codes.means.device,
            progress=progress,
        ),
        needs_log_variances=True,
        needs_quantities=True,
    ),
    DisentanglementScore(
        "rmig",
        "RMIG",
        lambda codes, _: rmig(
            codes.means,
            codes.log_variances,
            codes.classes,
            factor_names=codes.names,
            device=codes.means.device,
        ),
        needs_log_variances=True,
    ),
    DisentanglementScore(
        "mig_histogram",
        "MIG, histogram",
        lambda codes, _: mig_histogram(
            codes.means[:10_000], codes.classes[:10_000], factor_names=codes.names
        ),
    ),
    DisentanglementScore(
        "dci",
        "DCI",
        lambda codes, _: dci(codes.means, codes.classes, factor_names=codes.names),
        values=(
            ("disentanglement", ", disentanglement"),
            ("completeness", ", completeness"),
            ("informativeness", ", informativeness"),
        ),
    ),
    DisentanglementScore(
        "sap",
        "SAP",
        lambda codes, _: sap(codes.means, codes.classes, factor_names=codes.names),
    ),
    DisentanglementScore(
        "sap_continuous",
        "SAP, continuous",
        lambda codes, _: sap(
            codes.means, codes.ordered_values, continuous=True, factor_names=codes.ordered_names
        ),
        needs_quantities=True,
    ),
    DisentanglementScore(
        "factor_vae_score",
        "FactorVAE score",
        lambda codes, _: factor_vae_score(codes.means, codes.classes),
    ),
    DisentanglementScore(
        "beta_vae_score",
        "β-VAE score",
        lambda codes, _: beta_vae_score(codes.means, codes.classes),
    ),
    DisentanglementScore(
        "modularity",
        "modularity",
        lambda codes, _: modularity(codes.means[:10_000], codes.classes[:10_000]),
    ),
    DisentanglementScore(
        "explicitness",
        "explicitness",
        lambda codes, _: explicitness(codes.means, codes.classes, factor_names=codes.names),
    ),
    DisentanglementScore(
        "infomec",
        "InfoMEC",
        lambda codes, _: infomec(
            codes.means[:10_000], codes.classes[:10_000], factor_names=codes.names
        ),
        values=(("infom", ", InfoM"), ("infoe", ", InfoE"), ("infoc", ", InfoC")),
    ),
    DisentanglementScore(
        "mig_sup",
        "MIG-sup",
        lambda codes, _: mig_sup(codes.means[:10_000], codes.classes[:10_000]),
    ),
    DisentanglementScore(
        "dci_es",
        "DCI-ES",
        lambda codes, _: dci_es(
            codes.means,
            codes.classes,
            quantities=[codes.names.index(name) for name in codes.ordered_names],
            factor_names=codes.names,
        ),
        values=(("explicitness", ", explicitness"), ("size", ", size")),
    ),
)


def selected_scores(selection: Selection) -> tuple[DisentanglementScore, ...]:
    """Return the disentanglement scores of a selection."""
    return tuple(score for score in DISENTANGLEMENT_SCORES if selection.wants(score.key))
