#!/usr/bin/env python3
"""What speculative decoding does for one sequence on this machine's processors.

    drafts.py OCTET MODEL.gguf [--threads N]

Serves the model without drafts, with n-grams and with itself as its draft model, asks for 160 tokens
of three prompts (a file to be written again, a list that goes on, a story), greedily, and prints
steps, drafts accepted, wall time and the server's CPU time; and whether the texts are the same.
CPU time tells what other work on the machine has not taken away. Python's standard library only.
"""
import argparse
import json
import os
import re
import subprocess
import time
import urllib.request

FILE = "".join(f"def {name}(a, b):\n    return a {sign} b\n\n"
               for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*")))
PROMPTS = {
    "file": f"Here is a Python file:\n```\n{FILE}```\nHere is the same Python file again, unchanged:\n```\n",
    "list": "Repeat this list three times:\nred apple, green pear, yellow banana, blue plum\n"
            "1. red apple, green pear, yellow banana, blue plum\n2.",
    "story": "Write a short story about a lighthouse keeper who finds a letter in a bottle.\n\n",
}
COUNTERS = {"steps": "octet:steps_total", "drafts": "vllm:spec_decode_num_draft_tokens_total",
            "accepted": "vllm:spec_decode_num_accepted_tokens_total",
            "draft steps": "octet:draft_model_steps_total"}


class Server:
    def __init__(self, octet, model, threads, config):
        command = [octet, "serve", model, "--backend", f"cpu:threads={threads}", "--port", "0",
                   "--num-gpu-blocks-override", "512", "--max-num-seqs", "4", "--max-model-len", "1024",
                   "--no-enable-prefix-caching", "--disable-access-log"]
        if config:
            command += ["--speculative-config", json.dumps(config)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        self.url = re.search(r"http://\S+", self.process.stdout.readline()).group(0)

    def get(self, path, body=None):
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()

    def counters(self):
        text = self.get("/metrics")
        return {key: float(re.search(rf"^{name}{{[^}}]*}} (\S+)$", text, re.M).group(1))
                for key, name in COUNTERS.items()}

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, prompt):
        body = {"prompt": prompt, "max_tokens": 160, "temperature": 0, "ignore_eos": True}
        return json.loads(self.get("/v1/completions", body))["choices"][0]["text"]

    def close(self):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("octet")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    ngram = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    configs = {"none": None, "ngram 5": {**ngram, "num_speculative_tokens": 5},
               "ngram 10": {**ngram, "num_speculative_tokens": 10},
               "itself 3": {"model": given.model, "num_speculative_tokens": 3}}
    plain = {}
    print(f"{'drafts':10} {'prompt':6} {'steps':>6} {'drafts':>7} {'accepted':>9} {'draft steps':>12} "
          f"{'wall s':>7} {'CPU s':>6}  text")
    for name, config in configs.items():
        server = Server(given.octet, given.model, given.threads, config)
        for kind, prompt in PROMPTS.items():
            before, cpu, start = server.counters(), server.cpu_s(), time.time()
            text = server.ask(prompt)
            wall, cpu = time.time() - start, server.cpu_s() - cpu
            did = {key: int(value - before[key]) for key, value in server.counters().items()}
            plain.setdefault(kind, text)
            print(f"{name:10} {kind:6} {did['steps']:6} {did['drafts']:7} {did['accepted']:9} "
                  f"{did['draft steps']:12} {wall:7.2f} {cpu:6.2f}  "
                  f"{'same' if text == plain[kind] else 'OTHER'}", flush=True)
        server.close()


main()
