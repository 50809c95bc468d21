"""Figures of federated masked-LM training over nine silos, one language of medical texts each."""

from simulation.papers.published.figure import Figure, Paper, Setting, read_table

PAPER = Paper(
    "Federated healthcare NLU",
    "a federated multilingual model for medical texts over nine silos, deployed on Azure ML",
)
SIZES = read_table(
    PAPER,
    "table 1",
    Setting("samples of each silo, lists of sentences of its texts, as counted", runs=0),
    """
           | train samples | test samples
Italian    | 412,437       | 26,192
French     | 477,323       | 31,167
Spanish    | 502,479       | 42,225
Portuguese | 400,175       | 26,192
English    | 132,593,658   | 4,400,378
German     | 575,559       | 26,192
Arabic     | 83,963        | 26,192
Hebrew     | 34,104        | 26,192
Russian    | 100,762       | 26,192
""",
    unit="samples",
)
PERPLEXITY = read_table(
    PAPER,
    "table 3",
    Setting("XLM-K further trained on about 10 % of the samples, all test samples of the language"),
    """
    | FL   | CL    | It    | Fr    | Es    | Pt    | En    | De    | Ar    | He    | Ru    | Base
It  | 5.63 | 5.80  | 6.32  | 8.12  | 10.18 | 8.51  | 22.12 | 8.11  | 9.22  | 10.76 | 9.25  | 16.10
Fr  | 4.97 | 4.94  | 7.16  | 5.53  | 7.62  | 7.36  | 18.09 | 6.98  | 8.01  | 9.35  | 7.72  | 13.13
Es  | 5.65 | 5.81  | 9.01  | 7.96  | 6.45  | 7.74  | 17.93 | 8.11  | 9.17  | 11.40 | 9.11  | 17.28
Pt  | 5.85 | 6.01  | 9.36  | 8.91  | 9.40  | 6.91  | 22.68 | 8.98  | 10.23 | 12.46 | 10.31 | 18.65
En  | 3.41 | 3.51  | 15.60 | 14.65 | 13.84 | 14.57 | 3.50  | 13.96 | 15.88 | 20.71 | 15.54 | 32.83
De  | 7.10 | 7.04  | 10.38 | 10.07 | 10.24 | 10.47 | 28.12 | 7.74  | 11.57 | 14.60 | 11.42 | 21.98
Ar  | 8.36 | 10.48 | 12.07 | 12.30 | 12.20 | 12.66 | 33.79 | 11.25 | 10.81 | 13.78 | 12.22 | 19.82
He  | 6.98 | 9.44  | 10.44 | 10.14 | 10.36 | 11.18 | 32.08 | 9.73  | 10.80 | 11.43 | 10.65 | 19.30
Ru  | 6.07 | 7.17  | 7.95  | 7.66  | 7.59  | 8.12  | 25.95 | 7.56  | 8.65  | 10.39 | 7.34  | 14.77
""",
    unit="perplexity",
)
ENTITIES = read_table(
    PAPER,
    "table 4",
    Setting("named entities on three public sets, starting from each model; the best F1 score"),
    """
             | FL micro | FL macro | FL weighted | CL micro | CL macro | CL weighted
BC5CDR       | 0.8913   | 0.8917   | 0.8915      | 0.8917   | 0.8920   | 0.8919
NCBI-disease | 0.9287   | -        | -           | 0.9370   | -        | -
i2b2 2009    | 0.9184   | 0.8476   | 0.9170      | 0.9174   | 0.8446   | 0.9155
""",
    unit="F1",
    remarks={
        ("NCBI-disease", column): "one number: the set has a single kind of entity"
        for column in ("FL micro", "CL micro")
    },
)
DOWNSTREAM = read_table(
    PAPER,
    "table 5",
    Setting(
        "two tasks of clinical notes of a company's own, in English and Hebrew; average F1 "
        "score; CL: the model of public texts, trained in one place; FL: the model of two silos, "
        "one of 2.5 GB of de-identified Hebrew notes and one of public English texts, so the two "
        "differ in their texts as well"
    ),
    """
                    | CL public: strict | CL public: type | FL Hebrew: strict | FL Hebrew: type
NER                 | 0.5415            | 0.6778          | 0.6628            | 0.8118
Relation Extraction | 0.8144            | -               | 0.8178            | -
""",
    unit="F1",
    remarks={
        ("Relation Extraction", column): "one number of each model; which entities count as found, "
        "by their boundaries (strict) or their kind (type), is said of NER alone"
        for column in ("CL public: strict", "FL Hebrew: strict")
    },
)
PERSONALISED = read_table(
    PAPER,
    "table 6",
    Setting("accuracy of masked tokens, simulated with FLUTE on the public texts"),
    """
              | English | French | Spanish | German | Russian | Portuguese | Italian
Federated     | 0.6976  | 0.6404 | 0.6183  | 0.5950 | 0.5876  | 0.6145     | 0.6194
Personalized  | 0.6945  | 0.6491 | 0.6286  | 0.6007 | 0.6054  | 0.6213     | 0.6288
Interpolated  | 0.6970  | 0.6510 | 0.6279  | 0.6024 | 0.6043  | 0.6220     | 0.6279
""",
    unit="share",
)
BEST_ALPHA = Figure(
    0.9,
    "share of the personalised model",
    PAPER,
    "figure 3",
    "best interpolation, German",
    "",
    Setting("of 21 values from 0 to 1, trained after federation on German alone"),
)
CONVERGED = {
    name: Figure(
        value,
        "perplexity",
        PAPER,
        "figure 2",
        f"{name}, after about 10 % of the samples",
        "",
        Setting(
            "over all languages, on test samples drawn at random: 65,536 by CL, 10 % of all by FL"
        ),
        remark="the caption calls both FL; the second is taken for CL",
    )
    for name, value in (("FL", 3.49), ("CL", 3.59))
}
