#!/usr/bin/env python3
"""How fast `octet serve` takes weights from a file, beside the rate at which the disk gives that file.

    weights-from-disk.py OCTET CONFIG.json [--layers 8] [--folder DIR] [--backend cuda] [--blocks N]

Writes a checkpoint of the config's shape with so many layers and random bytes into DIR (it is removed
at the end), reads it with dd and then serves it, each with the page cache emptied before (that needs
root; else it says so) and with the file in it. Llama's layout only. Python's standard library only.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

BLOCK = 64 << 20


def tensors(c):
    hidden, inner, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    width = c.get("head_dim") or hidden // heads
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows in (("q", heads), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
            yield f"{at}self_attn.{name}_proj.weight", (rows * width, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, heads * width)
        yield at + "mlp.gate_proj.weight", (inner, hidden)
        yield at + "mlp.up_proj.weight", (inner, hidden)
        yield at + "mlp.down_proj.weight", (hidden, inner)
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (c["vocab_size"], hidden)


def write(folder, config, layers):
    with open(config) as f:
        c = json.load(f)
    c["num_hidden_layers"] = layers
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f)
    head, end = {}, 0
    for name, shape in tensors(c):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path = os.path.join(folder, "model.safetensors")
    block = os.urandom(BLOCK)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for at in range(0, end, BLOCK):
            f.write(block[: min(BLOCK, end - at)])
        f.flush()
        os.fsync(f.fileno())
    return path, end


def forget():
    """Empties the page cache; False: it may not."""
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3\n")
        return True
    except OSError:
        return False


def dd(path, *flags):
    begin = time.monotonic()
    subprocess.run(["dd", "if=" + path, "of=/dev/null", "bs=64M", *flags], check=True,
                   stderr=subprocess.DEVNULL)
    return os.path.getsize(path) / (time.monotonic() - begin) / 1e9


def serve(args, folder):
    """What the server says of its weights, and seconds until it serves."""
    command = [args.octet, "serve", folder, "--backend", args.backend, "--skip-tokenizer-init",
               "--max-num-seqs", "16", "--max-model-len", "2048", "--port", "0",
               "--num-gpu-blocks-override", str(args.blocks)]
    begin = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, "G_MESSAGES_DEBUG": "all"}, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = ""
    for line in process.stdout:
        found = re.search(r"weights: .* GB/s", line)
        said = found.group(0) if found else said
        if "serving" in line:
            break
    seconds = time.monotonic() - begin
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    return said, seconds


def main():
    p = argparse.ArgumentParser()
    p.add_argument("octet")
    p.add_argument("config")
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--folder")
    p.add_argument("--backend", default="cuda")
    p.add_argument("--blocks", type=int, default=2048)
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: exit(1))
    folder = tempfile.mkdtemp(dir=args.folder)
    try:
        begin = time.monotonic()
        path, size = write(folder, args.config, args.layers)
        print(f"written: {size / 1e9:.2f} GB, {size / (time.monotonic() - begin) / 1e9:.2f} GB/s", flush=True)
        for kind in ("cold", "warm"):
            if kind == "cold" and not forget():
                print("cold: the page cache cannot be emptied here: not measured")
                continue
            if kind == "cold":
                print(f"cold: dd past the page cache {dd(path, 'iflag=direct'):.2f} GB/s", flush=True)
                forget()
            print(f"{kind}: dd {dd(path):.2f} GB/s", flush=True)
            if kind == "cold":
                forget()
            said, seconds = serve(args, folder)
            print(f"{kind}: octet: {said or 'no line on weights'}; {seconds:.2f} s until it serves", flush=True)
    finally:
        shutil.rmtree(folder)


main()
