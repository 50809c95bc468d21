"""PET's figures: a head and cloze on few labels in one place, by AUG-FedPrompt's own model.

Schick and Schuetze's table 1, whose settings AUG-FedPrompt takes over. What it calls PET is more
than cloze: models of several patterns label further texts, and a head is trained on those.
"""

from simulation.papers.published.figure import Paper, Setting, read_table

PAPER = Paper("PET", "EACL'21, arXiv:2001.07676")
COLUMN = {"ag_news": "AG's", "mnli": "MNLI", "yahoo_answers": "Yahoo", "yelp_review_full": "Yelp"}
IN_ONE_PLACE = read_table(
    PAPER,
    "table 1",
    Setting(
        "RoBERTa-large, all weights, in one place; batch 16, learning rate 1e-5, 256 tokens; PET "
        "is cloze by several patterns, distilled; untrained is the mean of the patterns; MNLI is "
        "the matched part",
        3,
    ),
    """
               | Yelp     | AG's     | Yahoo    | MNLI
untrained      | 33.8±9.6 | 69.5±7.2 | 44.0±9.1 | 39.1±4.3
10 supervised  | 21.1±1.6 | 25.0±0.1 | 10.1±0.1 | 34.2±2.1
10 PET         | 52.9±0.1 | 87.5±0.0 | 63.8±0.2 | 41.8±0.1
50 supervised  | 44.8±2.7 | 82.1±2.5 | 52.5±3.1 | 45.6±1.8
50 PET         | 60.0±0.1 | 86.3±0.0 | 66.2±0.1 | 63.9±0.0
100 supervised | 53.0±3.1 | 86.0±0.7 | 62.9±0.9 | 47.9±2.8
100 PET        | 61.9±0.0 | 88.3±0.1 | 69.2±0.0 | 74.7±0.3
1000 supervised | 63.0±0.5 | 86.9±0.4 | 70.5±0.3 | 73.1±0.2
1000 PET       | 64.8±0.1 | 86.9±0.2 | 72.7±0.0 | 85.3±0.2
""",
    unit="%",
)
