"""Explain any PyTorch model: record a pass, find roles in it, run it again under a table of rules.

The files in the order in which they build on each other:

* `trace` records a pass as a list of ATen operations, with the values that each read and made;
* `node_ids` finds out which node each entry of each value belongs to, and `linear_attention` writes
  the matrix of linear attention into the list;
* `roles` finds attention, gates, the scales of norms, and activations;
* `replay` plans which operations run again under which rules, and runs them. It is handed a
  function that runs one operation: by the conservative rules (its own), with derivatives along
  constants (`constants`), or by the positive rules (`positive_pass`);
* `attention` reads the attention between nodes;
* `program` follows a list that was recorded earlier while the model runs, which is faster than to
  record it and run it again;
* `pass_cache` keeps what several methods need of the same pass;
* `session` puts all of this together, for a pass of a wrapped model or a block of a user's code.
"""
