#!/usr/bin/env python3
"""Writes greedy.json: what llama.cpp says greedily to ten prompts, with SmolLM2-135M-Instruct's weights
(tools/get-smollm2: Q4_1 blocks) dequantised to float32 and a float32 cache.

    python3 -m venv venv && venv/bin/pip install xllamacpp==2026.10.11549 gguf==0.19.0
    venv/bin/python make_greedy.py SmolLM2-135M-Instruct.Q4_1.gguf > greedy.json

llama.cpp multiplies Q4_1 blocks with activations that it rounds to 8 bits; float32 weights are multiplied
as they are, which is what Octet computes from the blocks. The prompts are rendered and tokenized by
llama.cpp too. Nothing here shares code with Octet.

With --blocks the file itself is run, rounded activations and all: for a look at how far that is."""
import json
import os
import sys
import tempfile
import urllib.request

import gguf
import numpy
import xllamacpp

PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List three prime numbers larger than 10.",
    'Translate to French: "The weather is nice today."',
    "What does the C function memcpy do?",
    "Give me a recipe for pancakes.",
    'Who wrote "Pride and Prejudice", and when was it published?',
    "Continue the story: The old lighthouse keeper heard a knock at midnight.",
    "Name the planets of the solar system, in order from the sun.",
]
TOKENS = 64


def widen(source, target):
    """The same GGUF file with float32 tensors."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = 0 if field.name == "general.file_type" else field.contents()
        writer.add_key_value(field.name, value, kind, sub_type=inner)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, numpy.ascontiguousarray(values.astype(numpy.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def serve(path):
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 2048
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    params.port = 0
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.verbosity = -1
    return xllamacpp.Server(params)


def ask(server, path, body):
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def answer(server, prompt):
    messages = [{"role": "user", "content": prompt}]
    text = ask(server, "/apply-template", {"messages": messages})["prompt"]
    ids = ask(server, "/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]
    said = ask(server, "/completion", {
        "prompt": ids, "n_predict": TOKENS, "temperature": 0, "samplers": ["top_k"], "top_k": 1,
        "repeat_penalty": 1.0, "cache_prompt": False, "return_tokens": True, "n_probs": 2})
    tops = [p["top_logprobs"] for p in said["completion_probabilities"]]
    return {"prompt": prompt, "prompt_ids": ids, "ids": said["tokens"], "text": said["content"],
            "least_margin": round(min(t[0]["logprob"] - t[1]["logprob"] for t in tops), 5)}


def main():
    path = sys.argv[-1]
    with tempfile.TemporaryDirectory() as folder:
        if "--blocks" not in sys.argv:
            wide = os.path.join(folder, "wide.gguf")
            widen(path, wide)
            path = wide
        server = serve(path)
        print("[\n" + ",\n".join(json.dumps(answer(server, p), ensure_ascii=False) for p in PROMPTS) + "\n]")


if __name__ == "__main__":
    main()
