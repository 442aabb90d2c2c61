"""Score the codes of `helpers/reference_codes.py` by public implementations: `references.json`.

    pip install scikit-learn==1.9.1 scipy==1.17.1 pyitlib==0.3.1 prdc==0.2 torch six
    git clone https://github.com/kylehkhsu/latent_quantization FOLDER/latent_quantization  # and so on
    python tests/metrics/make_references.py FOLDER

Changes to their sources at load time, none of them to a formula: arguments that scikit-learn has
dropped, an assignment that NumPy 2 refuses, and imports of gin, absl and TensorFlow.
"""

import json
import sys
import types
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np
import scipy.stats

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "helpers"))

from reference_codes import (
    DINOV2_KINDS,
    FACTORS,
    code_cases,
    dinov2_inputs,
    dinov2_weights,
    feature_cases,
    model_cases,
)

SOURCES = {
    "latent_quantization": "kylehkhsu/latent_quantization@9a420a33505e03914f9b4fbfcafd221d25b8162f",
    "DCI-ES": "andreinicolicioiu/DCI-ES@9329daec05ac18038e080596c5bde997d28a1aaa",
    "disentanglement_lib": "google-research/disentanglement_lib"
    "@86a644d4ed35c771560dc3360756363d35477357",
    "ubisoft": "ubisoft/ubisoft-laforge-disentanglement-metrics"
    "@05d5667c129bc1445c343a651d26ccd2926fdde6",
    "dinov2": "facebookresearch/dinov2@b8931f7bf91576930313be2c6d6af376033b35f0",
}


def load(path, *changes, **names):
    """Run a module from its source with textual changes and return its names."""
    source = path.read_text()
    for old, new in changes:
        assert old in source, (path, old)
        source = source.replace(old, new)
    module = types.ModuleType(path.stem)
    module.__dict__.update(names)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def stub_imports():
    """Provide the decorators and loggers that disentanglement_lib imports."""
    gin = types.ModuleType("gin")
    gin.tf = types.ModuleType("gin.tf")
    gin.tf.configurable = gin.configurable = lambda *_, **__: lambda function: function
    gin.tf.REQUIRED = gin.REQUIRED = None
    gin.tf.tf = gin
    logging = types.SimpleNamespace(info=lambda *_: None)
    absl = types.ModuleType("absl")
    absl.logging = logging
    utils = types.ModuleType("disentanglement_lib.evaluation.metrics.utils")
    metrics = types.ModuleType("disentanglement_lib.evaluation.metrics")
    metrics.utils = utils
    sys.modules |= {
        "gin": gin,
        "gin.tf": gin.tf,
        "absl": absl,
        "disentanglement_lib": types.ModuleType("disentanglement_lib"),
        "disentanglement_lib.evaluation": types.ModuleType("disentanglement_lib.evaluation"),
        "disentanglement_lib.evaluation.metrics": metrics,
    }


def infomec(folder):
    module = load(
        folder / "latent_quantization/disentangle/metrics/infomec.py",
        ("        multi_class='multinomial',\n", ""),
        ("n_neighbors=10)", "n_neighbors=10)[0]"),
    )
    results = {}
    for name, codes in code_cases().items():
        np.random.seed(0)
        scores = module.compute_infomec(FACTORS, codes, discrete_latents=name == "quantised")
        results[name] = {
            "infom": scores["infom"],
            "infoe": scores["infoe"],
            "infoc": scores["infoc"],
            "nmi": scores["nmi"].tolist(),
            "active": np.flatnonzero(scores["active_latents"]).tolist(),
        }
    return results


def explicitness(folder):
    stub_imports()
    path = folder / "disentanglement_lib/disentanglement_lib/evaluation/metrics"
    module = load(path / "modularity_explicitness.py")
    rows = np.random.default_rng(3).permutation(len(FACTORS))
    learnt, tested = rows[:1_000], rows[1_000:]
    results = {}
    for name, codes in code_cases().items():
        mean, spread = codes[learnt].mean(0), codes[learnt].std(0)
        scaled = (codes - mean) / spread
        areas = [
            module.explicitness_per_factor(scaled[learnt].T, y[learnt], scaled[tested].T, y[tested])
            for y in FACTORS.T
        ]
        results[name] = {"learnt": [a for a, _ in areas], "tested": [b for _, b in areas]}
    return results


def udr(folder):
    stub_imports()
    path = folder / "disentanglement_lib/disentanglement_lib/evaluation/udr/metrics/udr.py"
    module = load(path, ("import scipy\n", "import scipy, scipy.stats\n"))
    codes, kl = model_cases()
    data = types.SimpleNamespace(sample_observations=lambda count, _: np.arange(count))
    functions = [lambda x, z=z, k=k: (z[x], k) for z, k in zip(codes, kl, strict=True)]
    results = {}
    for similarity in ("lasso", "spearman"):
        scores = module.compute_udr_sklearn(
            data, functions, None, len(FACTORS), len(FACTORS), correlation_matrix=similarity
        )
        pairs = np.array(scores["pairwise_disentanglement_scores"])[:, :, 0]
        results[similarity] = {
            "scores": [float(score) for score in scores["model_scores"]],
            "pairs": pairs.tolist(),
        }
    return results


def dci_es(folder):
    module = load(folder / "DCI-ES/metrics/explitcitness.py", ("import pdb", ""))
    dci = load(folder / "DCI-ES/metrics/dci.py", ("import pdb", ""), scipy=scipy)
    rng = np.random.default_rng(4)
    curves = []
    for _ in range(20):
        capacities = np.sort(rng.uniform(0, 10, 8))
        losses = np.sort(rng.uniform(0, 0.9, 8))[::-1] + 0.05 * rng.normal(size=8)
        chance = rng.uniform(0.9, 1.0)
        scores = module.Explitcitness()
        scores.add_curve(capacities, losses.copy(), chance, name="one")
        curves.append(
            {
                "capacities": capacities.tolist(),
                "losses": losses.tolist(),
                "chance": chance,
                "explicitness": scores.get_explitcitness()["one"],
            }
        )
    importance = rng.uniform(size=(5, 3)) ** 3
    return {
        "curves": curves,
        "importance": importance.tolist(),
        "disentanglement": dci.disentanglement(importance),
        "completeness": dci.completeness(importance),
    }


def mig_sup(folder):
    sys.path.insert(0, str(folder / "ubisoft/src"))
    np.int = int  # for pyitlib
    utils = load(folder / "ubisoft/src/utils.py", ("norm_factor='Y'", "norm_factor='X'"))
    sys.modules["utils"] = utils
    module = load(folder / "ubisoft/src/metrics/mig_sup.py")
    return {
        name: module.mig_sup(FACTORS, codes, continuous_factors=False, nb_bins=20)
        for name, codes in code_cases().items()
    }


def prdc():
    from prdc import compute_prdc

    return {
        name: {
            k: {key: float(v) for key, v in compute_prdc(real, made, nearest_k=k).items()}
            for k in (1, 3, 5)
        }
        for name, (real, made) in feature_cases().items()
    }


def dinov2(folder):
    import os
    from functools import partial

    import torch

    os.environ["XFORMERS_DISABLED"] = "1"
    sys.path.insert(0, str(folder / "dinov2"))
    from dinov2.layers import MemEffAttention, NestedTensorBlock
    from dinov2.models.vision_transformer import DinoVisionTransformer

    results = {}
    for kind, settings in DINOV2_KINDS.items():
        more = {}
        if settings.get("registers"):  # as in dinov2/hub/backbones.py
            more = {
                "num_register_tokens": settings["registers"],
                "interpolate_antialias": True,
                "interpolate_offset": 0.0,
            }
        model = DinoVisionTransformer(
            img_size=518,
            patch_size=14,
            embed_dim=64,
            depth=2,
            num_heads=1,
            mlp_ratio=6 if settings.get("gated") else 4,  # SwiGLU takes two thirds of it
            ffn_layer="swiglufused" if settings.get("gated") else "mlp",
            block_fn=partial(NestedTensorBlock, attn_class=MemEffAttention),
            init_values=1.0,
            block_chunks=0,
            **more,
        ).eval()
        weights = {k: torch.from_numpy(v) for k, v in dinov2_weights(**settings).items()}
        model.load_state_dict(weights)
        with torch.no_grad():
            results[kind] = model(torch.from_numpy(dinov2_inputs())).tolist()
    return results


def main():
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    packages = ("numpy", "scipy", "scikit-learn", "pyitlib", "prdc", "torch")
    references = {
        "sources": SOURCES,
        "packages": {name: metadata.version(name) for name in packages},
        "command": "python tests/metrics/make_references.py FOLDER",
        "infomec": infomec(folder),
        "explicitness": explicitness(folder),
        "udr": udr(folder),
        "dci_es": dci_es(folder),
        "mig_sup": mig_sup(folder),
        "prdc": prdc(),
        "dinov2": dinov2(folder),
    }
    text = json.dumps(references, indent=1, default=float)
    (HERE / "references.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
