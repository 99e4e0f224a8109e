"""``hermes-actor doctor``: the command and its checks."""
