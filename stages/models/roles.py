"""Role of each linear of a block (attention.q, mlp.down, ...), from the end of its name.

One table serves Llama, Mistral, Qwen2, Qwen3, Gemma, Phi, OPT, GPT-NeoX and GPT-2; a new
architecture whose names differ needs a line here and nothing else.
"""

QUERY, KEY, VALUE = "attention.q", "attention.k", "attention.v"

SUFFIXES = {
    "self_attn.q_proj": "attention.q",
    "self_attn.k_proj": "attention.k",
    "self_attn.v_proj": "attention.v",
    "self_attn.o_proj": "attention.o",
    "self_attn.qkv_proj": "attention.qkv",  # Phi-3
    "self_attn.out_proj": "attention.o",  # OPT
    "self_attn.dense": "attention.o",  # Phi
    "attention.query_key_value": "attention.qkv",  # GPT-NeoX
    "attention.dense": "attention.o",
    "attn.c_attn": "attention.qkv",  # GPT-2
    "attn.c_proj": "attention.o",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
    "mlp.gate_up_proj": "mlp.gate_up",  # Phi-3
    "mlp.fc1": "mlp.up",  # Phi
    "mlp.fc2": "mlp.down",
    "mlp.dense_h_to_4h": "mlp.up",  # GPT-NeoX
    "mlp.dense_4h_to_h": "mlp.down",
    "mlp.c_fc": "mlp.up",  # GPT-2
    "mlp.c_proj": "mlp.down",
    "fc1": "mlp.up",  # OPT
    "fc2": "mlp.down",
}

OTHER = "other"
"""Role of a linear that is not in the table; solve.rules can name it."""

ROLES = (*dict.fromkeys(SUFFIXES.values()), OTHER)


def role_of(name: str) -> str:
    """Role of the linear with this dotted name, inside its block or in full."""
    parts = name.split(".")
    for length in (2, 1):
        role = SUFFIXES.get(".".join(parts[-length:]))
        if role is not None:
            return role
    return OTHER
