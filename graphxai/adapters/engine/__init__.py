"""Explain any PyTorch model: record a pass, mark it, run it again under one table of rules.

The files in the order in which they build on each other:

* `trace`: a pass as a list of ATen operations, with the values that each read and made;
* `nodes`: which node each entry of each value belongs to; `matrices`: linear attention with its
  matrix;
* `marks`: what is attention, a gate, the scale of a norm, an activation;
* `replay`: what of it runs again under which rules (`plan`), and the interpreter that runs it. It
  is handed a function that runs one operation: by the conservative rules (here), along constants
  (`shares`), or by the positive rules (`relevance`);
* `attention`: what methods that read attention see;
* `program`: a list that is known, followed while the model runs, which is faster than to run again;
* `cached_passes`: what methods find in the same pass, once for all of them;
* `passing`: all of this for one pass of a wrapped model, or for a block of a user's code.
"""
