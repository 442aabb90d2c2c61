"""Tables 3, 4, 8 and 9: ELBO and FID on CIFAR-10 and CelebA."""

from controlvae.paper.specs import PaperTable, Printed, Row


def _images(elbo: float, elbo_sd: float, fid: float, fid_sd: float) -> dict[str, Printed]:
    return {"ELBO": Printed(elbo, elbo_sd), "FID": Printed(fid, fid_sd)}


# Weights of the last step, and those that did best on the validation split.
_IMAGE_COLUMNS = {
    "ELBO": "elbo",
    "FID": "fid.samples.score",
    "KL": "kl",
    "reconstruction": "reconstruction",
    "ELBO, best by validation": "best.elbo",
    "FID, best by validation": "best.fid.samples.score",
}
# An FID depends on how it was measured, so the CSV file records that too.
_IMAGE_MORE = {
    "IWAE": "iwae.bound",
    "FID of reconstructions": "fid.reconstructions.score",
    "KID": "kid.samples.score",
    "KID of reconstructions": "kid.reconstructions.score",
    "SSIM": "likeness.ssim",
    "PSNR": "likeness.psnr",
    "FID images": "fid.pictures",
    "FID reference images": "fid.reference_pictures",
    "FID split": "fid.split",
    "FID extractor": "fid.extractor",
    "FID resize": "fid.resize",
}

IMAGE_TABLES = (
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
)
