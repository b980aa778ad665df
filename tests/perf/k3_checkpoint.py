#!/usr/bin/env python3
"""Writes a checkpoint of a Kimi K3 shape as the released one is laid out, with made-up weights.

    k3_checkpoint.py CONFIG.json FOLDER [--layers N] [--experts N] [--seed S] [--shard-gb N]

CONFIG.json is Kimi K3's (engine/model/zoo/kimi-k3.json) or one like it; FOLDER is empty or not there.
Shards with their index, names under `language_model.`, the config nested, experts in compressed-tensors'
MXFP4, A_log padded, a vision tensor that a text engine skips, tiktoken.model with as many ranks as the
vocabulary has, and the names of special tokens. Weights are drawn from the seed, of sizes that keep a
model's numbers in range; one block of random bytes a type, from which each tensor begins elsewhere.
Python's standard library only. Imported by weights-from-disk.py.
"""
import argparse
import base64
import json
import os
import random

BLOCK = 32 << 20
BYTES = {"BF16": 2, "F32": 4, "U8": 1}
SPECIALS = 256  # ids behind the ranks
# Their places: those of the released tokenizer.
NAMES = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>",
         6: "[start_header_id]", 7: "[end_header_id]", 9: "[EOT]", 254: "[UNK]", 255: "[PAD]"}


def shorten(config, layers, experts):
    """The first so many layers, with so many experts each; all where not given."""
    text = config["text_config"]
    layers = layers or text["num_hidden_layers"]
    text["num_hidden_layers"] = layers
    text["num_experts"] = experts or text["num_experts"]
    linear = text["linear_attn_config"]
    for key in ("full_attn_layers", "kda_layers"):
        linear[key] = [at for at in linear[key] if at <= layers]
    return config


def tensors(config):
    """Name, type, shape and kind of values of every tensor, in the order of the files."""
    c, linear = config["text_config"], config["text_config"]["linear_attn_config"]
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    n_delta, width = linear["num_heads"], linear["head_dim"]
    inner, latent = c["moe_intermediate_size"], c["routed_expert_hidden_size"]
    shared = inner * c["num_shared_experts"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]

    def weight(name, *shape):
        return name, "BF16", shape, "weight"

    def norm(name, size, kind="BF16"):
        return name, kind, (size,), "norm"

    def delta(at):
        planes = n_delta * width
        for which in "qkvg":
            yield weight(f"{at}{which}_proj.weight", planes, hidden)
        for which in "qkv":
            yield f"{at}{which}_conv1d.weight", "F32", (planes, 1, linear["short_conv_kernel_size"]), "small"
        yield weight(at + "f_a_proj.weight", width, hidden)
        yield weight(at + "f_b_proj.weight", planes, width)
        yield weight(at + "b_proj.weight", n_delta, hidden)
        yield at + "A_log", "F32", (max(128, n_delta),), "small"  # padded
        yield at + "dt_bias", "F32", (planes,), "small"
        yield norm(at + "o_norm.weight", width, "F32")
        yield weight(at + "o_proj.weight", hidden, planes)

    def full(at):
        rank, low = c["q_lora_rank"], c["kv_lora_rank"]
        yield weight(at + "q_a_proj.weight", rank, hidden)
        yield norm(at + "q_a_layernorm.weight", rank)
        yield weight(at + "q_b_proj.weight", heads * (nope + rope), rank)
        yield weight(at + "kv_a_proj_with_mqa.weight", low + rope, hidden)
        yield norm(at + "kv_a_layernorm.weight", low)
        yield weight(at + "kv_b_proj.weight", heads * (nope + value), low)
        yield weight(at + "g_proj.weight", heads * value, hidden)
        yield weight(at + "o_proj.weight", hidden, heads * value)

    def feed(at, size):
        yield weight(at + "gate_proj.weight", size, hidden)
        yield weight(at + "up_proj.weight", size, hidden)
        yield weight(at + "down_proj.weight", hidden, size)

    def experts(at):
        yield weight(at + "gate.weight", c["num_experts"], hidden)
        yield at + "gate.e_score_correction_bias", "F32", (c["num_experts"],), "small"
        yield weight(at + "routed_expert_down_proj.weight", latent, hidden)
        yield norm(at + "routed_expert_norm.weight", latent)
        yield weight(at + "routed_expert_up_proj.weight", hidden, latent)
        yield from feed(at + "shared_experts.", shared)
        for expert in range(c["num_experts"]):
            for name, rows, columns in (("w1", inner, latent), ("w2", latent, inner), ("w3", inner, latent)):
                one = f"{at}experts.{expert}.{name}."
                yield one + "weight_packed", "U8", (rows, columns // 2), "codes"
                yield one + "weight_scale", "U8", (rows, columns // 32), "scales"

    model = "language_model.model."
    yield weight(model + "embed_tokens.weight", c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        at = f"{model}layers.{layer}."
        yield norm(at + "input_layernorm.weight", hidden)
        yield norm(at + "post_attention_layernorm.weight", hidden)
        for which in ("self_attention", "mlp"):
            yield norm(f"{at}{which}_res_norm.weight", hidden)
            yield weight(f"{at}{which}_res_proj.weight", 1, hidden)
        yield from (full if layer + 1 in linear["full_attn_layers"] else delta)(at + "self_attn.")
        yield from (feed(at + "mlp.", c["intermediate_size"]) if layer < c["first_k_dense_replace"]
                    else experts(at + "block_sparse_moe."))
    yield norm(model + "norm.weight", hidden)
    yield norm(model + "output_attn_res_norm.weight", hidden)
    yield weight(model + "output_attn_res_proj.weight", 1, hidden)
    yield weight("language_model.lm_head.weight", c["vocab_size"], hidden)
    yield weight("vision_tower.blocks.0.weight", 64, 64)


def blocks(seed):
    """Random bytes by kind and type: numbers whose high byte is one of a few."""
    rng = random.Random(seed)

    def floats(size, high, low=None):
        block = bytearray(rng.randbytes(BLOCK))
        block[size - 1::size] = rng.randbytes(BLOCK // size).translate(bytes(high[i % len(high)] for i in range(256)))
        if low is not None:  # the byte before: sets the exponent's last bit
            block[size - 2::size] = bytes(x | low for x in block[size - 2::size])
        return bytes(block)

    return {
        ("weight", "BF16"): floats(2, b"\x3c\xbc"),  # 2^-7 to 2^-5
        ("norm", "BF16"): floats(2, b"\x3f", 0x80),  # 1 to 2
        ("norm", "F32"): floats(4, b"\x3f", 0x80),
        ("small", "F32"): floats(4, b"\x3d\xbd"),    # 2^-5 to 2^-3
        ("codes", "U8"): rng.randbytes(BLOCK),
        ("scales", "U8"): rng.randbytes(BLOCK).translate(bytes(118 + i % 3 for i in range(256))),
    }


def size_of(kind, shape):
    size = BYTES[kind]
    for n in shape:
        size *= n
    return size


def write_tensor(file, block, size, number):
    at = number * 40503 * 64 % BLOCK
    while size > 0:
        part = memoryview(block)[at:at + size]
        file.write(part)
        size -= len(part)
        at = 0


def write_shards(folder, config, seed, shard_bytes):
    shards, sizes = [[]], [0]
    for tensor in tensors(config):
        size = size_of(tensor[1], tensor[2])
        if sizes[-1] > 0 and sizes[-1] + size > shard_bytes:
            shards.append([])
            sizes.append(0)
        shards[-1].append((*tensor, size))
        sizes[-1] += size
    data, index, number = blocks(seed), {}, 0
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):06d}.safetensors"
        head, end = {}, 0
        for tensor, kind, shape, _, size in shard:
            head[tensor] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
            index[tensor] = name
            end += size
        text = json.dumps(head, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, name), "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for _, kind, _, values, size in shard:
                number += 1
                write_tensor(f, data[values, kind], size, number)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": sum(sizes)}, "weight_map": index}, f)
    return sum(sizes)


def write_text(folder, config):
    """Every byte is a token, then every two, then threes: any text can be said in them."""
    n = config["text_config"]["vocab_size"] - SPECIALS
    with open(os.path.join(folder, "tiktoken.model"), "w") as f:
        for rank in range(n):
            size = 1 if rank < 256 else 2 if rank < 256 + 65536 else 3
            token = (rank - (0, 256, 256 + 65536)[size - 1]).to_bytes(size, "big")
            f.write(f"{base64.b64encode(token).decode()} {rank}\n")
    added = {str(n + at): {"content": NAMES.get(at, f"<|reserved_token_{n + at}|>"), "special": True}
             for at in range(SPECIALS)}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "<|end_of_msg|>",
                   "pad_token": "[PAD]", "unk_token": "[UNK]"}, f)


def make(config_path, folder, layers=0, experts=0, seed=1, shard_bytes=2 << 30):
    """Bytes of all tensors."""
    with open(config_path) as f:
        config = shorten(json.load(f), layers, experts)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    write_text(folder, config)
    return write_shards(folder, config, seed, shard_bytes)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("folder")
    p.add_argument("--layers", type=int, default=0)
    p.add_argument("--experts", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--shard-gb", type=float, default=2)
    args = p.parse_args()
    size = make(args.config, args.folder, args.layers, args.experts, args.seed, int(args.shard_gb * 1e9))
    print(f"{args.folder}: {size / 1e9:.2f} GB of tensors")


if __name__ == "__main__":
    main()
