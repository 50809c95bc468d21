"""What papers print about training on boards; nothing of it was measured or estimated here.

AUG-FedPrompt's table 4 stands as it is printed, with its marks. `OOM (9.8)` is a step that ran out
of the board's memory and took 9.8 GB on the authors' server (note 3 of the paper).
"""

# Rows as printed, but `OOM (9.8)` is 9.8 here; `OUT_OF_MEMORY` says of which models.
TABLE_4 = """
             | ALBERT-base | BERT-base | BERT-large | RoBERTa-base | RoBERTa-large
Memory (GB)  | 3.7         | 5.4       | 9.8        | 5.8          | 10.4
Latency (s)  | 1.4         | 1.9       | ~7.8       | 2.1          | ~8.1
Param. (M)   | 11.7        | 109.5     | 334.9      | 124.6        | 355.3
"""
OUT_OF_MEMORY = ("BERT-large", "RoBERTa-large")
