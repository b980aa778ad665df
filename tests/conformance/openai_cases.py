"""What the official OpenAI client gets: completions, chats, streams and their options."""

import copy
import json

import openai

from harness import case, check, equal

# ---------------------------------------------------------------- models


@case()
def models_list(bed):
    """models.list() names the model, and models.retrieve() finds it"""
    models = bed.client.models.list()
    equal(models.object, "list")
    equal(models.data[0].object, "model")
    check(models.data[0].created > 0, "a model has no time")
    equal(bed.client.models.retrieve(bed.model).id, bed.model)


# ---------------------------------------------------------------- completions


@case()
def completion(bed):
    """a completion has text, a reason to end, and a usage that adds up"""
    answer = bed.complete()
    equal(answer.object, "text_completion")
    equal(answer.model, bed.model)
    check(answer.id and answer.created > 0, "no id or time")
    choice = answer.choices[0]
    equal((choice.index, choice.finish_reason), (0, "length"))
    check(isinstance(choice.text, str), "no text")
    u = answer.usage
    equal(u.completion_tokens, 8)
    equal(u.total_tokens, u.prompt_tokens + u.completion_tokens)
    check(u.prompt_tokens > 0, "no prompt tokens")


@case()
def completion_token_ids(bed):
    """a prompt of token ids counts as that many tokens"""
    answer = bed.complete([5, 6, 7, 8, 9], max_tokens=3)
    equal(answer.usage.prompt_tokens, 5)


@case()
def completion_batch(bed):
    """several prompts in one request get a choice each, in order"""
    one = bed.complete("alpha").choices[0].text
    two = bed.complete("beta").choices[0].text
    both = bed.complete(["alpha", "beta"])
    equal([c.index for c in both.choices], [0, 1])
    equal([c.text for c in both.choices], [one, two])


@case()
def completion_batch_of_ids(bed):
    """several prompts of token ids are as many prompts"""
    answer = bed.complete([[5, 6, 7], [8, 9]], max_tokens=2)
    equal(len(answer.choices), 2)
    equal(answer.usage.prompt_tokens, 5)
    equal(answer.usage.completion_tokens, 4)


@case()
def completion_stream(bed):
    """a stream's texts joined are the text of the whole answer"""
    whole = bed.complete(max_tokens=16)
    text, reasons = "", []
    for chunk in bed.complete(max_tokens=16, stream=True):
        equal(chunk.object, "text_completion")
        for choice in chunk.choices:
            text += choice.text
            reasons.append(choice.finish_reason)
    equal(text, whole.choices[0].text)
    equal(reasons[-1], "length")
    equal([r for r in reasons[:-1] if r], [])


@case()
def completion_stream_usage(bed):
    """stream_options.include_usage adds one chunk without choices, the last"""
    chunks = list(bed.complete(stream=True, stream_options={"include_usage": True}))
    equal(chunks[-1].choices, [])
    equal(chunks[-1].usage.completion_tokens, 8)
    equal([c.usage for c in chunks[:-1] if c.usage], [])
    equal(len({c.id for c in chunks}), 1)


@case()
def completion_stream_without_usage(bed):
    """a stream that did not ask for usage has none"""
    equal([c for c in bed.complete(stream=True) if c.usage or not c.choices], [])


@case()
def completion_n(bed):
    """n choices come with indices 0 … n - 1, and the prompt counts once"""
    answer = bed.complete(n=3, temperature=1, seed=7)
    equal(sorted(c.index for c in answer.choices), [0, 1, 2])
    equal(answer.usage.completion_tokens, 24)
    equal(answer.usage.prompt_tokens, bed.complete().usage.prompt_tokens)


@case()
def completion_n_stream(bed):
    """n choices of a stream are told apart, and each says how it ended"""
    texts, reasons = {}, {}
    for chunk in bed.complete(n=2, temperature=1, seed=7, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    equal(reasons, {0: "length", 1: "length"})
    whole = bed.complete(n=2, temperature=1, seed=7)
    equal(texts, {c.index: c.text for c in whole.choices})


@case()
def completion_echo(bed):
    """echo puts the prompt in front of the answer"""
    plain = bed.complete("alpha beta", max_tokens=4)
    echoed = bed.complete("alpha beta", max_tokens=4, echo=True)
    equal(echoed.choices[0].text, "alpha beta" + plain.choices[0].text)


@case()
def completion_logprobs(bed):
    """logprobs have a token, a number at most 0 and an offset for each token"""
    answer = bed.complete(max_tokens=4, logprobs=2)
    l = answer.choices[0].logprobs
    equal([len(l.tokens), len(l.token_logprobs), len(l.text_offset)], [4, 4, 4])
    check(all(x <= 0 for x in l.token_logprobs), f"above 0: {l.token_logprobs}")
    check(all(2 <= len(top) <= 3 for top in l.top_logprobs), f"not 2: {l.top_logprobs}")


@case()
def completion_logprobs_stream(bed):
    """a stream's logprobs are those of the whole answer"""
    whole = bed.complete(max_tokens=4, logprobs=1).choices[0].logprobs
    tokens, numbers = [], []
    for chunk in bed.complete(max_tokens=4, logprobs=1, stream=True):
        for choice in chunk.choices:
            if choice.logprobs:
                tokens += choice.logprobs.tokens
                numbers += choice.logprobs.token_logprobs
    equal(tokens, whole.tokens)
    check(
        all(abs(a - b) < 1e-3 for a, b in zip(numbers, whole.token_logprobs)),
        f"{numbers} and {whole.token_logprobs}",
    )


@case()
def completion_echo_logprobs(bed):
    """echo with logprobs has those of the prompt, the first of which is null"""
    answer = bed.complete([5, 6, 7], max_tokens=2, echo=True, logprobs=1)
    numbers = answer.choices[0].logprobs.token_logprobs
    equal(len(numbers), 5)
    equal(numbers[0], None)
    check(all(x <= 0 for x in numbers[1:]), f"above 0: {numbers}")


# ---------------------------------------------------------------- sampling


@case()
def greedy_is_repeatable(bed):
    """temperature 0 gives the same text twice"""
    equal(bed.complete(max_tokens=16).choices[0].text, bed.complete(max_tokens=16).choices[0].text)


@case()
def seed_is_repeatable(bed):
    """a seed gives the same text twice, another seed another"""
    a, b, c = (
        bed.complete(max_tokens=24, temperature=1, seed=s).choices[0].text for s in (1, 1, 2)
    )
    equal(a, b)
    check(a != c, "two seeds, one text")


@case()
def sampling_options(bed):
    """every sampling option of the client is taken"""
    bed.complete(
        temperature=0.7,
        top_p=0.9,
        frequency_penalty=0.5,
        presence_penalty=0.5,
        logit_bias={"5": 1},
        seed=3,
        user="someone",
    )


@case()
def vllm_sampling_options(bed):
    """vLLM's sampling options are taken in extra_body"""
    answer = bed.complete(
        max_tokens=12,
        extra_body={
            "top_k": 20,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "min_tokens": 4,
            "ignore_eos": True,
            "stop_token_ids": [],
            "skip_special_tokens": True,
        },
    )
    equal(answer.usage.completion_tokens, 12)


@case()
def logit_bias_bans(bed):
    """a bias of -100 keeps a token out, one of +100 forces it"""
    ids = bed.complete(max_tokens=3, extra_body={"return_token_ids": True}).choices[0].token_ids
    banned = bed.complete(
        max_tokens=3, logit_bias={str(ids[0]): -100}, extra_body={"return_token_ids": True}
    )
    check(ids[0] not in banned.choices[0].token_ids, "a banned token came")
    forced = bed.complete(
        max_tokens=3, logit_bias={"9": 100}, extra_body={"return_token_ids": True}
    )
    equal(forced.choices[0].token_ids, [9, 9, 9])


@case()
def max_tokens_one(bed):
    """max_tokens 1 gives one token"""
    answer = bed.complete(max_tokens=1)
    equal(answer.usage.completion_tokens, 1)
    equal(answer.choices[0].finish_reason, "length")


# ---------------------------------------------------------------- stop


@case()
def stop_string(bed):
    """the text ends before a stop string, with the reason stop"""
    whole = bed.complete(max_tokens=24).choices[0].text
    check(len(whole) >= 6, f"too short to test: {whole!r}")
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    answer = bed.complete(max_tokens=24, stop=stop).choices[0]
    equal(answer.text, whole[: whole.index(stop)])
    equal(answer.finish_reason, "stop")


@case()
def stop_strings_stream(bed):
    """a stream never shows a part of a stop string"""
    whole = bed.complete(max_tokens=24).choices[0].text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    text = "".join(
        c.choices[0].text
        for c in bed.complete(max_tokens=24, stop=[stop, "\x01none"], stream=True)
        if c.choices
    )
    equal(text, whole[: whole.index(stop)])


@case()
def stop_none(bed):
    """a stop string that does not come changes nothing"""
    equal(bed.complete(stop=["\x01\x02"]).choices[0].text, bed.complete().choices[0].text)


# ---------------------------------------------------------------- chat


@case()
def chat(bed):
    """a chat's answer is a message of the assistant"""
    answer = bed.chat()
    equal(answer.object, "chat.completion")
    choice = answer.choices[0]
    equal(choice.message.role, "assistant")
    check(isinstance(choice.message.content, str), "no content")
    check(choice.finish_reason in ("stop", "length"), choice.finish_reason)
    u = answer.usage
    equal(u.total_tokens, u.prompt_tokens + u.completion_tokens)


@case()
def chat_roles(bed):
    """system, developer, user and assistant messages are taken, content as parts too"""
    for first in ("system", "developer"):
        bed.client.chat.completions.create(
            model=bed.model,
            max_tokens=4,
            messages=[
                {"role": first, "content": "Be short."},
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": "Hi."},
                {"role": "user", "content": [{"type": "text", "text": "How are you?"}]},
            ],
        )


@case()
def chat_stream(bed):
    """a chat's stream begins with the role, and joined is the whole answer"""
    whole = bed.chat(max_tokens=16).choices[0].message.content
    chunks = list(bed.chat(max_tokens=16, stream=True))
    equal(chunks[0].object, "chat.completion.chunk")
    equal(chunks[0].choices[0].delta.role, "assistant")
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    equal(text, whole)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    check(reasons[-1] in ("stop", "length"), str(reasons))


@case()
def chat_stream_helper(bed):
    """the client's own stream helper adds the chunks up"""
    with bed.client.chat.completions.stream(
        model=bed.model,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=8,
        temperature=0,
    ) as stream:
        try:
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError as error:  # the client's word for "length"
            final = error.completion
    equal(final.choices[0].message.content, bed.chat("Hello").choices[0].message.content)


@case()
def chat_usage_stream(bed):
    """a chat's stream tells its usage where it is asked"""
    chunks = list(bed.chat(stream=True, stream_options={"include_usage": True}))
    equal(chunks[-1].choices, [])
    check(chunks[-1].usage.completion_tokens >= 1, "no tokens")


@case()
def chat_max_completion_tokens(bed):
    """max_completion_tokens limits a chat as max_tokens does"""
    answer = bed.client.chat.completions.create(
        model=bed.model,
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=3,
        extra_body={"ignore_eos": True},
    )
    equal(answer.usage.completion_tokens, 3)
    equal(answer.choices[0].finish_reason, "length")


@case()
def chat_logprobs(bed):
    """a chat's logprobs have token, bytes and the top ones"""
    answer = bed.chat(max_tokens=3, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    equal(len(content), answer.usage.completion_tokens)
    for token in content:
        check(token.logprob <= 0, "above 0")
        equal(len(token.top_logprobs), 2)
        check(token.bytes is not None, "no bytes")


@case()
def chat_n(bed):
    """n choices of a chat"""
    answer = bed.chat(n=2, temperature=1, seed=5)
    equal([c.index for c in answer.choices], [0, 1])


@case()
def chat_prompt_is_templated(bed):
    """a chat's prompt has more tokens than its content: the template's"""
    plain = bed.complete("Hello", max_tokens=1).usage.prompt_tokens
    check(bed.chat("Hello", max_tokens=1).usage.prompt_tokens > plain, "no template")


@case("text")
def chat_answers(bed):
    """a real model answers a question"""
    answer = bed.chat("What is the capital of France?", max_tokens=24).choices[0].message.content
    check("Paris" in answer, answer)


# ---------------------------------------------------------------- tools and formats

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
        },
    },
}


@case()
def tools_are_taken(bed):
    """a request with tools is answered, by text or by a call"""
    choice = bed.chat("Weather in Paris?", tools=[TOOL], max_tokens=16).choices[0]
    check(choice.finish_reason in ("stop", "length", "tool_calls"), choice.finish_reason)


@case()
def tool_choice_none(bed):
    """tool_choice none calls no tool"""
    choice = bed.chat("Weather?", tools=[TOOL], tool_choice="none").choices[0]
    check(not choice.message.tool_calls, "a tool was called")


@case()
def tool_results_are_taken(bed):
    """a conversation with a call and its result goes on"""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"place":"Paris"}'},
    }
    bed.client.chat.completions.create(
        model=bed.model,
        max_tokens=4,
        tools=[TOOL],
        messages=[
            {"role": "user", "content": "Weather in Paris?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"},
        ],
    )


@case()
def tool_choice_named(bed):
    """a named tool is called, with arguments of its schema"""
    tool = copy.deepcopy(TOOL)
    tool["function"]["parameters"]["properties"]["place"] = {"enum": ["Paris", "Rome"]}
    choice = bed.chat(
        "Weather in Paris?",
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=300,
    ).choices[0]
    equal(choice.finish_reason, "tool_calls")
    call = choice.message.tool_calls[0]
    equal(call.function.name, "weather")
    check(json.loads(call.function.arguments)["place"] in ("Paris", "Rome"), str(call))


@case()
def json_object(bed):
    """response_format json_object gives JSON"""
    choice = bed.chat(
        "Give JSON.", response_format={"type": "json_object"}, max_tokens=300
    ).choices[0]
    if choice.finish_reason == "stop":
        check(isinstance(json.loads(choice.message.content), dict), choice.message.content)


@case()
def json_schema(bed):
    """response_format json_schema gives JSON of that schema"""
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
        "required": ["ok", "kind"],
        "additionalProperties": False,
    }
    choice = bed.chat(
        "Give JSON.",
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        max_tokens=300,
    ).choices[0]
    equal(choice.finish_reason, "stop")
    value = json.loads(choice.message.content)
    check(isinstance(value["ok"], bool) and value["kind"] in ("a", "b"), str(value))


@case()
def guided_choice(bed):
    """vLLM's guided_choice gives one of the choices"""
    answer = bed.complete(
        max_tokens=20, extra_body={"guided_choice": ["yes", "no"]}
    ).choices[0]
    check(answer.text in ("yes", "no"), answer.text)


@case()
def guided_regex(bed):
    """vLLM's guided_regex gives what the pattern allows"""
    answer = bed.complete(max_tokens=20, extra_body={"guided_regex": "[0-9]{3}"}).choices[0]
    check(len(answer.text) == 3 and answer.text.isdigit(), answer.text)


# ---------------------------------------------------------------- the rest


@case()
def embeddings(bed):
    """embeddings come as floats and as base64, equal, one for each input"""
    floats = bed.client.embeddings.create(
        model=bed.model, input=["alpha", "beta"], encoding_format="float"
    )
    packed = bed.client.embeddings.create(model=bed.model, input=["alpha", "beta"])
    equal([e.index for e in floats.data], [0, 1])
    check(len(floats.data[0].embedding) > 0, "empty")
    for a, b in zip(floats.data, packed.data):
        equal(len(a.embedding), len(b.embedding))
        check(all(abs(x - y) < 1e-5 for x, y in zip(a.embedding, b.embedding)), "differ")
    check(floats.usage.prompt_tokens > 0, "no usage")


@case()
def responses(bed):
    """a response has output text and usage"""
    answer = bed.client.responses.create(model=bed.model, input="Hello", max_output_tokens=16)
    check(isinstance(answer.output_text, str), "no text")
    check(answer.usage.output_tokens >= 1, "no usage")
    check(answer.status in ("completed", "incomplete"), str(answer.status))


@case()
def responses_stream(bed):
    """a response's stream begins, brings text and completes"""
    kinds = [
        event.type
        for event in bed.client.responses.create(
            model=bed.model, input="Hello", max_output_tokens=16, stream=True
        )
    ]
    equal(kinds[0], "response.created")
    check("response.output_text.delta" in kinds, str(kinds))
    check(kinds[-1] in ("response.completed", "response.incomplete"), kinds[-1])


@case()
def request_id(bed):
    """X-Request-Id is echoed"""
    raw = bed.client.completions.with_raw_response.create(
        model=bed.model, prompt="a", max_tokens=1, extra_headers={"X-Request-Id": "abc-123"}
    )
    equal(raw.headers.get("x-request-id"), "abc-123")


@case()
def cached_tokens(bed):
    """a prompt that is asked twice is found in the cache, and usage says so"""
    prompt = list(range(10, 110))
    bed.complete(prompt, max_tokens=1)
    usage = bed.complete(prompt, max_tokens=1).usage
    equal(usage.prompt_tokens, 100)
    check(usage.prompt_tokens_details.cached_tokens >= 64, str(usage))
