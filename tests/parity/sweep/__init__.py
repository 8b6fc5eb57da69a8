"""Random configurations of every family, compared with transformers.

One case is one random configuration: transformers writes the folder (``reference.py``), ours reads
it, and ``checking.py`` compares what both give, what goes back, and for some cases what both
generate. A case ends as *equal* or as *refused* with the reason; a refusal has to be one that its
family announces, and anything else fails the test.

How a family joins
------------------
Write one function in any module of ``families/`` (modules there are found by themselves)::

    @family("opt", refused=["do_layer_norm_before"])
    def opt(draw: Draw) -> Case:
        heads, size = draw.heads()
        return Case(
            "OPTForCausalLM",                      # the class of transformers
            {                                      # its configuration's arguments
                "vocab_size": draw.vocab(),
                "hidden_size": heads * size,
                "num_attention_heads": heads,
                "num_hidden_layers": draw.layers(),
                "activation_function": draw.activation(),
                "max_position_embeddings": draw.positions,
            },
            positions=draw.positions,              # most tokens of a row, None: no bound
        )

- ``draw`` is a :class:`random.Random` with shorthands; everything must come from it, so that a
  seed says the whole case. ``draw.turn([...])`` takes alternatives in turn from case to case: use
  it for heads (classes), so that none is left out by chance.
- Every argument that changes a result should be drawn, odd values among them. Configurations that
  ours refuses may be drawn too: list a pattern of the error in ``refused``.
- ``Case.edit`` changes the tensors of the file, ``Case.fields`` the written ``config.json``, for
  files as older versions wrote them. ``Case.spare`` are patterns of tensors that a model of this
  class has no use for.
- Inputs (padded right, left and in the middle) follow from the model's kind; classes whose inputs
  differ may bring ``Case.inputs``.

``SWEEP_SEED`` repeats a run, which prints its seed first; ``SWEEP_CASES`` is the number of cases of
each family (18).
"""
