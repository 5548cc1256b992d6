"""Compute Chefer 2021b and Song 2024 for one graph in plain NumPy, in loops over indices.

This is slow, and written from the papers alone. Tokens are (T, D), and the graph token comes first.
"""

from math import erf, sqrt

import numpy as np


def linear_rule(x, weight, relevance):
    """Apply Eq. 5, over the set q of pairs with a positive product."""
    passed_on = np.zeros_like(x)
    for t in range(len(x)):
        for i in range(len(weight)):
            products = [x[t, j] * weight[i, j] for j in range(x.shape[1])]
            total = sum(p for p in products if p > 0)
            for j, p in enumerate(products):
                if p > 0:
                    passed_on[t, j] += p / total * relevance[t, i]
    return passed_on


def eq_10(first, second, incoming):
    """Normalise as Eq. 10 is printed."""
    a, b, total = first.sum(), second.sum(), incoming.sum()
    scale = abs(a) / (abs(a) + abs(b)) * total / a
    return first * scale, second * (abs(b) / (abs(a) + abs(b)) * total / b)


def chefer_addition(u, v, relevance):
    """Apply Eq. 2 of u + v (the derivatives are one), then Eq. 10."""
    return eq_10(u * relevance / (u + v), v * relevance / (u + v), relevance)


def chefer_product(a, v, relevance):
    """Apply Eq. 2 of the matrix product to each factor, head by head, then Eq. 10."""
    to_a, to_v = np.zeros_like(a), np.zeros_like(v)
    out = a @ v
    for h, i, d in np.ndindex(out.shape):
        for j in range(a.shape[2]):
            part = a[h, i, j] * v[h, j, d] * relevance[h, i, d] / out[h, i, d]
            to_a[h, i, j] += part
            to_v[h, j, d] += part
    return eq_10(to_a, to_v, relevance)


def _shares(terms):
    """Return the shares of the positive terms, or of all terms if none is positive."""
    chosen = np.maximum(terms, 0) if (terms > 0).any() else terms
    return chosen / chosen.sum()


def plain_addition(u, v, relevance):
    to_u, to_v = np.zeros_like(u), np.zeros_like(v)
    for place in np.ndindex(u.shape):
        share = _shares(np.array([u[place], v[place]]))
        to_u[place], to_v[place] = share * relevance[place]
    return to_u, to_v


def plain_product(a, v, relevance):
    to_a, to_v = np.zeros_like(a), np.zeros_like(v)
    for h, i, d in np.ndindex(relevance.shape):
        share = _shares(a[h, i] * v[h, :, d]) * relevance[h, i, d]
        to_a[h, i] += share
        to_v[h, :, d] += share
    return to_a, to_v


class Reference:
    """The forward and relevance passes of a Graphormer's weights (a state dict of arrays)."""

    def __init__(self, state, config, bias):
        self.state, self.config, self.bias = state, config, bias  # bias (H, T, T)

    def linear(self, name, x):
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def norm(self, name, x):
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.layernorm_eps)
        return centred / scale * self.state[f"{name}.weight"] + self.state[f"{name}.bias"]

    def gelu(self, x):
        return x * 0.5 * (1 + np.vectorize(erf)(x / sqrt(2)))

    def heads(self, x):
        return x.reshape(len(x), self.config.num_heads, -1).transpose(1, 0, 2)  # (H, T, d)

    def merge(self, x):
        return x.transpose(1, 0, 2).reshape(x.shape[1], -1)

    def layer(self, index, x):
        """Return everything that a layer computes, by name."""
        at, pre = f"layers.{index}.", self.config.pre_layernorm
        seen = {"x": x, "attended": self.norm(at + "attention_norm", x) if pre else x}
        q = self.heads(self.linear(at + "attention.query", seen["attended"]))
        seen["q"] = q / sqrt(q.shape[-1])
        seen["k"] = self.heads(self.linear(at + "attention.key", seen["attended"]))
        seen["v"] = self.heads(self.linear(at + "attention.value", seen["attended"]))
        seen["qk"] = seen["q"] @ seen["k"].transpose(0, 2, 1)
        exponent = np.exp(seen["qk"] + self.bias)
        seen["a"] = exponent / exponent.sum(-1, keepdims=True)
        seen["mixed"] = self.merge(seen["a"] @ seen["v"])
        seen["branch"] = self.linear(at + "attention.output", seen["mixed"])
        middle = x + seen["branch"]
        seen["middle"] = middle if pre else self.norm(at + "attention_norm", middle)
        seen["fed"] = self.norm(at + "ffn_norm", middle) if pre else seen["middle"]
        seen["expanded"] = self.gelu(self.linear(at + "ffn.expand", seen["fed"]))
        seen["contracted"] = self.linear(at + "ffn.contract", seen["expanded"])
        out = seen["middle"] + seen["contracted"]
        return seen, out if pre else self.norm(at + "ffn_norm", out)

    def forward(self, tokens):
        seen, x = [], tokens
        for index in range(self.config.num_layers):
            values, x = self.layer(index, x)
            seen.append(values)
        return seen, x

    def output(self, x):
        """Compute all outputs from the graph token of x (T, D)."""
        x = self.norm("final_norm", x[:1]) if self.config.final_layernorm else x[:1]
        if self.config.head == "linear":
            return self.linear("head", x)[0]
        inner = self.norm("head.norm", self.gelu(self.linear("head.transform", x)))
        return (inner @ self.state["head.output.weight"].T + self.state["head.bias"])[0]

    def through_head(self, x, row):
        """Return the relevance of x (T, D) when f_c = row . outputs has relevance one."""
        read = self.norm("final_norm", x[:1]) if self.config.final_layernorm else x[:1]
        relevance, unit = np.zeros_like(x), np.ones((1, 1))
        if self.config.head == "linear":
            relevance[:1] = linear_rule(read, row[None] @ self.state["head.weight"], unit)
            return relevance
        inner = self.norm("head.norm", self.gelu(self.linear("head.transform", read)))
        below = linear_rule(inner, row[None] @ self.state["head.output.weight"], unit)
        relevance[:1] = linear_rule(read, self.state["head.transform.weight"], below)
        return relevance

    def relevance(self, tokens, row, rule, kinds=None):
        """Return the relevance of tokens (T, D), and of every layer's attention (H, T, T).

        `row` has f_c's weights over the outputs, and `rule` is "chefer" or "plain". `kinds` are two
        sets of heads (2, L, H), for Song 2024.
        """
        addition = chefer_addition if rule == "chefer" else plain_addition
        product = chefer_product if rule == "chefer" else plain_product
        layers, x = self.forward(tokens)
        relevance, of_attention = self.through_head(x, row), []
        for index in reversed(range(len(layers))):
            # the graph token alone is read from the last layer
            rows = slice(0, 1) if index == len(layers) - 1 else slice(None)
            seen, weights = layers[index], f"layers.{index}.{{}}.weight"

            def of(name, weights=weights):
                return self.state[weights.format(name)]

            middle, fed = seen["middle"][rows], seen["fed"][rows]
            expanded, x, branch = seen["expanded"][rows], seen["x"][rows], seen["branch"][rows]
            to_middle, to_ffn = addition(middle, seen["contracted"][rows], relevance[rows])
            to_expanded = linear_rule(expanded, of("ffn.contract"), to_ffn)
            to_middle = to_middle + linear_rule(fed, of("ffn.expand"), to_expanded)
            to_x, to_branch = addition(x, branch, to_middle)
            mixed = linear_rule(seen["mixed"][rows], of("attention.output"), to_branch)
            to_heads = self.heads(mixed)
            if kinds is not None:
                to_heads = song_mask(to_heads, kinds[:, index])
            to_a, to_v = product(seen["a"][:, rows], seen["v"], to_heads)
            below = linear_rule(seen["attended"], of("attention.value"), self.merge(to_v))
            if rule == "chefer":
                to_qk, _ = addition(seen["qk"][:, rows], self.bias[:, rows], to_a)
                to_q, to_k = product(seen["q"][:, rows], seen["k"].transpose(0, 2, 1), to_qk)
                to_k = self.merge(to_k.transpose(0, 2, 1))
                below += linear_rule(seen["attended"], of("attention.key"), to_k)
                below[rows] += linear_rule(
                    seen["attended"][rows], of("attention.query"), self.merge(to_q)
                )
            below[rows] += to_x
            relevance = below
            of_attention.insert(0, to_a)
        return relevance, of_attention


def song_mask(relevance, kinds):
    """Apply section 4.3 as printed, with |sum R_1| + |sum R_2| for |sum R|: relevance (H, Q, d)."""
    parts = [relevance * kind[:, None, None] for kind in kinds]
    total = sum(abs(part.sum()) for part in parts)
    scaled = [
        part * abs(part.sum()) / total * relevance.sum() / part.sum()
        for part in parts
        if part.sum() != 0
    ]
    return sum(scaled, np.zeros_like(relevance))


def rolled_out(of_attention, gradients):
    """Return the first row of C by Eq. 13 and 14 with whole matrices."""
    size = of_attention[0].shape[-1]
    product = np.eye(size)
    for relevance, gradient in zip(of_attention, gradients, strict=True):
        step = np.eye(size)
        step[: relevance.shape[1]] += np.maximum(relevance * gradient, 0).mean(0)
        product = step @ product
    return product[0]
