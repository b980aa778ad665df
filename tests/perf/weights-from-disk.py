#!/usr/bin/env python3
"""How fast `octet serve` takes weights from a file, beside the rate at which the disk gives that file.

    weights-from-disk.py OCTET CONFIG.json [--layers 8] [--experts N] [--folder DIR] [--backend cuda]
                         [--blocks N] [--no-direct] [--compare BACKEND,BACKEND]

Writes a checkpoint of the config's shape with so many layers and made-up weights into DIR (it is removed
at the end), reads it with dd and then serves it, each with the page cache emptied before (that needs
root; else it says so) and with the files in it. Llama's layout, or Kimi K3's released one with its
tokenizer (k3_checkpoint.py), with so many experts a layer. --compare serves it on two more backends
(cuda:dtype=float32,cpu) and compares the tokens of a prompt, and of K3 asks one of them to chat. Status
1 where they differ. Python's standard library only.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import k3_checkpoint

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


def write(folder, config, layers, experts):
    """Bytes of the tensors, and whether there is a tokenizer."""
    with open(config) as f:
        c = json.load(f)
    if c["model_type"] == "kimi_k3":
        size = k3_checkpoint.make(config, folder, layers, experts)
        os.sync()
        return size, True
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
    return end, False


def forget():
    """Empties the page cache; False: it may not."""
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3\n")
        return True
    except OSError:
        return False


def dd(folder, *flags):
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".safetensors")]
    begin = time.monotonic()
    for path in paths:
        subprocess.run(["dd", "if=" + path, "of=/dev/null", "bs=64M", *flags], check=True,
                       stderr=subprocess.DEVNULL)
    return sum(map(os.path.getsize, paths)) / (time.monotonic() - begin) / 1e9


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def ask(url, chat):
    """Tokens that follow a prompt, likeliest first; how many of a chat."""
    prompt = [(17 * i * i + 5) % 256 for i in range(24)]
    answer = post(url, "/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0,
                                           "ignore_eos": True, "return_token_ids": True})
    if chat:
        said = post(url, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Who are you?"}],
                                                  "max_tokens": 8, "temperature": 0})
        print(f"chat: {said['usage']}, ended by {said['choices'][0]['finish_reason']}", flush=True)
    return answer["choices"][0]["token_ids"]


def serve(args, folder, backend, then=None):
    """What the server says of its weights, seconds until it serves, and what then(its address) gives."""
    command = [args.octet, "serve", folder, "--backend", backend, "--max-num-seqs", "16",
               "--max-model-len", "2048", "--port", "0", "--num-gpu-blocks-override", str(args.blocks)]
    if not os.path.exists(os.path.join(folder, "tiktoken.model")):
        command.append("--skip-tokenizer-init")
    begin = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, "G_MESSAGES_DEBUG": "all"}, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, url = "", None
    for line in process.stdout:
        found = re.search(r"cuda: rank .* of weights in .* GB/s", line)
        said = found.group(0) if found else said
        url = re.search(r"serving .* on (http\S+)", line)
        if url:
            break
    seconds = time.monotonic() - begin
    try:
        answer = then(url.group(1)) if then and url else None
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    return said, seconds, answer


def compare(args, folder, chat):
    """Whether two backends agree on the tokens."""
    answers = []
    for backend in args.compare.split(","):
        _, seconds, tokens = serve(args, folder, backend, lambda url: ask(url, chat and not answers))
        print(f"{backend}: tokens {tokens}; {seconds:.2f} s until it serves", flush=True)
        answers.append(tokens)
    return all(tokens and tokens == answers[0] for tokens in answers)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("octet")
    p.add_argument("config")
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--experts", type=int, default=0)
    p.add_argument("--compare")
    p.add_argument("--no-direct", action="store_true", help="no dd past the page cache")
    p.add_argument("--folder")
    p.add_argument("--backend", default="cuda")
    p.add_argument("--blocks", type=int, default=2048)
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: exit(1))
    folder = tempfile.mkdtemp(dir=args.folder)
    try:
        begin = time.monotonic()
        size, has_text = write(folder, args.config, args.layers, args.experts)
        print(f"written: {size / 1e9:.2f} GB, {size / (time.monotonic() - begin) / 1e9:.2f} GB/s", flush=True)
        for kind in ("cold", "warm"):
            if kind == "cold" and not forget():
                print("cold: the page cache cannot be emptied here: not measured")
                continue
            if kind == "cold" and not args.no_direct:
                print(f"cold: dd past the page cache {dd(folder, 'iflag=direct'):.2f} GB/s", flush=True)
                forget()
            print(f"{kind}: dd {dd(folder):.2f} GB/s", flush=True)
            if kind == "cold":
                forget()
            said, seconds, _ = serve(args, folder, args.backend)
            print(f"{kind}: octet: {said or 'no line on weights'}; {seconds:.2f} s until it serves", flush=True)
        if args.compare and not compare(args, folder, has_text):
            sys.exit("the backends' tokens differ")
    finally:
        shutil.rmtree(folder)


main()
