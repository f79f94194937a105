"""SliceGPT in float64, a whole model in memory: weights are rotated and sliced as the paper's Algorithm 1 lists them.

The tests' models are small, so blocks are run by hand: norms without scale, attention and MLP of the model itself.
"""

from __future__ import annotations

import torch


@torch.no_grad()
def sliced_logits(model, windows, tokens, width, signal):
    """Logits (sequences, length, vocabulary) for `tokens` of `model` sliced to `width` on the text `windows`.

    Gives them and the share of energy lost at every norm. Changes `model`.
    """
    model = model.double().eval()
    dense, layers = model.config.hidden_size, model.model.layers
    eps = model.config.rms_norm_eps

    def signals(x):
        return _norm(x, dense, eps) if signal == "normed" else x

    calls = _calls(model, windows), _calls(model, tokens)
    x = [model.model.embed_tokens(ids) for ids in (windows, tokens)]
    basis, share = _components(signals(x[0]), width)
    lost = [share]
    x = [one @ basis for one in x]
    for index, layer in enumerate(layers):
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            linear.weight = torch.nn.Parameter(linear.weight * layer.input_layernorm.weight @ basis)
        attended = [
            attention(hidden_states=_norm(one, dense, eps), **call[index])[0]
            for one, call in zip(x, calls, strict=True)
        ]
        stream = [one @ basis.T + answer for one, answer in zip(x, attended, strict=True)]
        between, share = _components(signals(stream[0]), width)
        lost.append(share)
        x = [one @ between for one in stream]
        for linear in (mlp.gate_proj, mlp.up_proj):
            linear.weight = torch.nn.Parameter(linear.weight * layer.post_attention_layernorm.weight @ between)
        stream = [one @ between.T + mlp(_norm(one, dense, eps)) for one in x]
        if index + 1 < len(layers):
            basis, share = _components(signals(stream[0]), width)
            lost.append(share)
            x = [one @ basis for one in stream]
    return model.lm_head(model.model.norm(stream[1])), lost


def _components(x, width):
    """The first eigenvectors of XᵀX and the share of the other eigenvalues."""
    x = x.flatten(0, -2)
    values, vectors = torch.linalg.eigh(x.T @ x)
    return vectors.flip(1)[:, :width], float(values.flip(0)[width:].sum() / values.sum())


def _norm(x, dense, eps):
    return x / (x.square().sum(-1, keepdim=True) / dense + eps).sqrt()


def _calls(model, ids):
    """What each block's attention is called with beside its hidden states."""
    calls, handles = [], []
    for layer in model.model.layers:

        def note(module, args, kwargs):
            calls.append({name: value for name, value in kwargs.items() if name != "hidden_states"})

        handles.append(layer.self_attn.register_forward_pre_hook(note, with_kwargs=True))
    model(ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return calls
