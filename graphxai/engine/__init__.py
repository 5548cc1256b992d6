"""Explain any PyTorch model, by the list of the operations of one pass.

This is the list of one head of a GAT layer, with a star where the gradient flows, and with roles::

    1  * %3  = mm(%0, %2)               3x4
    4  * %9  = index(%8, [%5])          4
    8  * %14 = leaky_relu(%13, 0.2)     4
    9  * %15 = exp(%14)                 4    part of a softmax
    12 * %18 = index_add(%17, 0, %6, %15) 3
    14 * %20 = div(%15, %19)            4
    17 * %23 = mul(%21, %22)            4x4  attention weights %21 constant under the rule attention
    19 * %25 = index_add(%24, 0, %6, %23) 3x4

A pass goes `session` -> `trace` -> `role_finder` -> `plan` -> a pass -> shares of the ledger.

* `operations` has a row for each operation: its rules, what its node in autograd's graph saves,
  what it does to rows and numbers of nodes. `rules` and `fused` have the functions of the rows.
* `trace` is the list. `recording` writes it below PyTorch's dispatcher, `autograd_graph` reads it
  from PyTorch's own graph.
* `role_finder` finds attention, gates, scales of norms and activations by `flow_queries`; `plan`
  says what relevance passes through.
* `hooked_plan` and `hooked_pass` are the first tier: the model runs once, as it is, and hooks pass
  relevance back. `replay` and `recorded_pass` are the second: the recorded list runs again. It
  serves every pass whose graph does not say enough. `ledger` has the shares of constants.
* `request` describes a pass, and `session` chooses how it is explained.

Three rooms stand beside this core, which does not know them: `attention` between nodes, `positive`
rules, and `presence`, in which nodes are absent.
"""
