"""Errors as the client's classes, time-outs, and clients that leave."""

import threading
import time

import httpx2 as httpx
import openai

from harness import KEY, Server, case, check, equal, mock, raises


@case()
def wrong_key(bed):
    """a wrong key is an AuthenticationError, with a message"""
    with raises(openai.AuthenticationError, status=401):
        bed.openai(api_key="wrong").models.list()


@case()
def unknown_model(bed):
    """a model that is not served is a NotFoundError that names it"""
    with raises(openai.NotFoundError, "no-such-model", status=404):
        bed.complete(model="no-such-model")
    with raises(openai.NotFoundError, "no-such-model", status=404):
        bed.chat(model="no-such-model")
    with raises(openai.NotFoundError, status=404):
        bed.client.models.retrieve("no-such-model")


@case()
def unknown_path(bed):
    """a path that is not there is a NotFoundError"""
    with raises(openai.NotFoundError, status=404):
        bed.client.fine_tuning.jobs.list()


def bad(field, call):
    with raises(openai.BadRequestError, field, status=400):
        call()


@case()
def bad_values(bed):
    """a value out of range is a BadRequestError that names the field"""
    bad("max_tokens", lambda: bed.complete(max_tokens=0))
    bad("temperature", lambda: bed.complete(temperature=-1))
    bad("top_p", lambda: bed.complete(top_p=1.5))
    bad("n", lambda: bed.complete(n=0))
    bad("logprobs", lambda: bed.complete(logprobs=1000))
    bad("top_logprobs", lambda: bed.chat(logprobs=True, top_logprobs=1000))
    bad("presence_penalty", lambda: bed.complete(presence_penalty=9))
    bad("stop", lambda: bed.complete(stop=[""] * 100))


@case()
def bad_types(bed):
    """a value of another type is a BadRequestError that names the field"""
    bad("max_tokens", lambda: bed.complete(max_tokens="many"))
    bad("temperature", lambda: bed.complete(temperature="hot"))
    bad("messages", lambda: bed.chat(messages="hello"))
    bad("messages", lambda: bed.chat(messages=[]))
    bad("prompt", lambda: bed.complete(prompt={"a": 1}))


@case()
def unknown_field(bed):
    """a field that nobody knows is a BadRequestError that names it"""
    bad("frobnicate", lambda: bed.complete(extra_body={"frobnicate": 1}))


@case()
def unknown_role(bed):
    """a role that nobody knows is a BadRequestError"""
    bad("role", lambda: bed.chat(messages=[{"role": "wizard", "content": "x"}]))


@case()
def images_are_refused(bed):
    """an image is refused with the part's name"""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    bad("image_url", lambda: bed.chat(messages=[{"role": "user", "content": [image]}]))


@case()
def too_long(bed):
    """a prompt beyond the context is a BadRequestError with the limit"""
    most = bed.client.models.list().data[0].model_extra.get("max_model_len", 1 << 20)
    if most <= 200000:
        with raises(openai.BadRequestError, str(most), status=400):
            bed.complete([7] * (most + 1))


@case()
def error_body(bed):
    """an error's body has message, type, param and code"""
    try:
        bed.complete(temperature=-1)
    except openai.BadRequestError as error:
        check("message" in error.body and "type" in error.body, str(error.body))
        equal(error.param, "temperature")
        check(error.type == "invalid_request_error", str(error.type))
        return
    raise AssertionError("no error")


@case()
def not_json(bed):
    """a body that is no JSON is status 400 with an error object"""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    for body in (b"{", b"", b"[]", b'{"a":1,"a":2}', b"\xff"):
        got = httpx.post(bed.server.url + "/v1/completions", content=body, headers=headers)
        equal(got.status_code, 400, f"status of {body!r}")
        check(got.json()["error"]["message"], "no message")


@case()
def wrong_method(bed):
    """a wrong method is status 405 with Allow"""
    headers = {"Authorization": f"Bearer {KEY}"}
    got = httpx.get(bed.server.url + "/v1/completions", headers=headers)
    equal(got.status_code, 405)
    check("POST" in got.headers.get("allow", ""), "no Allow")


@case()
def open_paths(bed):
    """health and metrics need no key, everything else does"""
    for path in ("/health", "/livez", "/readyz", "/ping", "/metrics"):
        equal(httpx.get(bed.server.url + path).status_code, 200, path)
    for path in ("/v1/models", "/version", "/load", "/v1/completions", "/nowhere"):
        equal(httpx.get(bed.server.url + path).status_code, 401, path)


@case()
def refused_before_the_stream(bed):
    """a stream that cannot begin has its error's status, and no stream"""
    with raises(openai.BadRequestError, status=400):
        bed.complete(max_tokens=0, stream=True)


# ---------------------------------------------------------------- time-outs and clients that leave


@case("slow")
def client_timeout(bed):
    """the client's time-out is an APITimeoutError, and the server goes on"""
    with raises(openai.APITimeoutError):
        bed.openai(timeout=0.2).completions.create(
            model=bed.model, prompt="a", max_tokens=8000, extra_body={"ignore_eos": True}
        )
    bed.complete(max_tokens=1)


def load_of(bed):
    """Requests that are in."""
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.get(bed.server.url + "/load", headers=headers).json()["server_load"]


def settles(bed, wanted, seconds=60.0):
    end = time.monotonic() + seconds
    while load_of(bed) != wanted and time.monotonic() < end:
        time.sleep(0.02)
    equal(load_of(bed), wanted, "requests that are in")


@case("slow")
def cancelled_stream(bed):
    """a stream that its client closes is cancelled"""
    settles(bed, 0)
    stream = bed.complete(max_tokens=8000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    equal(load_of(bed), 1, "requests that are in")
    stream.close()
    settles(bed, 0)


@case("slow")
def cancelled_whole(bed):
    """a client that leaves while it waits for a whole answer is cancelled"""
    with raises(openai.APITimeoutError):
        bed.openai(timeout=0.3).completions.create(
            model=bed.model, prompt="a", max_tokens=8000, extra_body={"ignore_eos": True}
        )
    settles(bed, 0)


@case()
def many_at_once(bed):
    """32 clients at once get what one alone gets"""
    wanted = bed.complete("alpha", max_tokens=8).choices[0].text
    got = [None] * 32

    def ask(i):
        got[i] = bed.complete("alpha", max_tokens=8).choices[0].text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(got, [wanted] * 32, "texts")


@case("mock")
def nobody_listens(bed):
    """where nobody listens is an APIConnectionError"""
    with raises(openai.APIConnectionError):
        bed.openai(base_url="http://127.0.0.1:1/v1").models.list()


@case("mock")
def busy(bed):
    """a full queue is a RateLimitError that can be tried again"""
    with Server(*mock(20), "--max-num-seqs", "1", "--max-queued-requests", "1") as server:
        client = openai.OpenAI(
            base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=20
        )
        model = client.models.list().data[0].id
        kinds = []

        def ask():
            try:
                client.completions.create(
                    model=model, prompt="a", max_tokens=50, extra_body={"ignore_eos": True}
                )
                kinds.append("answered")
            except openai.OpenAIError as error:
                kinds.append(type(error).__name__)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check("RateLimitError" in kinds and "answered" in kinds, str(kinds))
        equal(set(kinds) - {"RateLimitError", "answered"}, set(), "other errors")


@case("mock")
def drained(bed):
    """a server that is told to end finishes its stream, refuses others, and ends with 0"""
    with Server(*mock(20), "--shutdown-timeout", "20") as server:
        client = openai.OpenAI(
            base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=20
        )
        model = client.models.list().data[0].id
        stream = client.completions.create(
            model=model, prompt="a", max_tokens=50, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = [next(iter(stream))]
        server.process.terminate()
        chunks += list(stream)
        equal(chunks[-1].choices[0].finish_reason, "length")
        equal(server.process.wait(30), 0, "exit status")
