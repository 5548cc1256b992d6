"""Explain any PyTorch model, by the list of the operations of one pass.

There are two tiers. The first lets the model run once, as it is, and reads the list from PyTorch's
own autograd graph (`autograd_graph`); hooks on its nodes pass relevance back by the rules
(`hooked_pass`). The second records the list below PyTorch's dispatcher (`recording`) and runs it
again under the rules (`replay`). It serves every pass whose graph does not say enough.

Five ideas, in the order in which they build on each other:

1. The list. `trace` has its types: operations, the memory that they used, and how data flowed.
   `vocabulary` groups the names of operations, `node_kinds` those of autograd's nodes;
   `operation_kind` says what is recorded of an operation, `live_values` where gradients flow.
2. The numbers of nodes. `node_ids` and `node_tracker` find out which node each entry of each value
   belongs to, with the sums and products of `id_arithmetic`; `structure_ids` follows counts of
   neighbours and nodes, too.
3. Roles. `roles` says what there is: attention, gates, the scales of norms, activations.
   `role_finder` finds them by the `flow_queries`. `linear_attention` writes the matrix of linear
   attention into a recorded list.
4. Running it under rules. `replay_plan` plans what relevance passes through. `rule_table` has the
   rules of each operation for both tiers: the conservative ones of `built_in_rules` and the
   positive ones of `positive_rules`, and says where a rule acts. `pass_warnings` names the steps
   that none covers. The shares of constants are derivatives along them (`constant_derivatives`),
   each on a line of the ledger (`ledger_lines`).
5. Reading attention. `attention` finds it, `pair_entries` reads its entries between two nodes, and
   `attention_pass` what enters the layer around it.

`hooked_pass` with `hooked_ledger` is the first tier, and `recorded_pass` the second. `session`
chooses between them for a pass of a wrapped model (`pass_request`), and `interception` does it all
for a module that is called in a block of a user's code. `presence` lets nodes be absent from a
recorded pass. `pass_cache` keeps what several methods need of the same pass.
"""
