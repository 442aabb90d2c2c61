"""Table 5 on Switchboard, and the numbers of Figure 6 on Penn Treebank."""

from controlvae.paper.specs import PaperTable, Printed, Row


def _dialog(
    dis1: Printed, dis2: Printed, bleu2: Printed, bleu3: Printed, ppl: Printed
) -> dict[str, Printed]:
    return {"Dis-1": dis1, "Dis-2": dis2, "self-BLEU-2": bleu2, "self-BLEU-3": bleu3, "PPL": ppl}


PTB_ROWS = (
    Row("ControlVAE (KL = 1.5)", "ptb-control-1.5"),
    Row("ControlVAE (KL = 3)", "ptb-control-3"),
    Row("cost annealing, 20k", "ptb-cost-20k"),
    Row("cost annealing, 50k", "ptb-cost-50k"),
    Row("cyclical annealing, 4", "ptb-cyclical-4"),
    Row("cyclical annealing, 8", "ptb-cyclical-8"),
)

TEXT_TABLES = (
    PaperTable(
        "table-dialog",
        "Table 5: diversity and perplexity of responses on Switchboard",
        {
            "Dis-1": "dialog.distinct_1",
            "Dis-2": "dialog.distinct_2",
            "self-BLEU-2": "dialog.paper_self_bleu_2",
            "self-BLEU-3": "dialog.paper_self_bleu_3",
            "PPL": "dialog.validation_perplexity",
            "self-BLEU-2, random": "dialog.self_bleu_2",
            "self-BLEU-3, random": "dialog.self_bleu_3",
            "PPL, test": "dialog.paper_perplexity",
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
            Row("cyclical annealing, two whole cycles", "dialog-cyclical-2"),
        ),
        "Half of the paper's dialogs are at hand (1,099 of 2,316), and no more can be had. They "
        "are cut into dialog acts; here the acts of a turn are joined. Dis-n: distinct n-grams of "
        "all responses, a count that grows with their number (54,810 in the paper, ten per test "
        "context). Self-BLEU follows the released code: all responses to the first 100 contexts; "
        "beside it, 1,000 responses at random. PPL follows the paper: the words of a response "
        "given a code that has read it, on the validation split; beside it, on the test set. It "
        "ignores the cost of the code, so it falls as the KL rises. PPL by ELBO and IWAE include "
        "the code and the dialog act, and are upper bounds of the model's perplexity on the test "
        "set.",
    ),
    PaperTable(
        "table-ptb",
        "Figure 6 in numbers: the test set of Penn Treebank (the paper prints none)",
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
            *PTB_ROWS,
            Row("VAE", "ptb-vae"),
            Row("VAE, linear warm-up", "ptb-warm-up"),
            Row("VAE, free bits", "ptb-free-bits"),
        ),
        "Nats per sentence. Perplexities are per token: words and ends of sentences. The paper's "
        "curve is −(reconstruction + β·KL) with the last β, which training maximises. A β below "
        "1 raises it, and it is not a bound. The ELBO has β = 1. Both perplexities are upper "
        "bounds of the model's perplexity. IWAE uses fewer sentences, and the ELBO of the same "
        "sentences is next to it. The mutual information is a lower bound.",
    ),
)
