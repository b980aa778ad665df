"""What the official Anthropic client gets from /v1/messages."""

import anthropic

from harness import case, check, equal

GREEDY = {"temperature": 0}
HELLO = [{"role": "user", "content": "Hello"}]


def ask(bed, **options):
    given = dict(model=bed.model, max_tokens=8, messages=HELLO)
    return bed.anthropic.messages.create(**{**given, **options})


@case()
def message(bed):
    """a message has text, a reason to stop and a usage"""
    answer = ask(bed)
    equal((answer.type, answer.role), ("message", "assistant"))
    equal(answer.content[0].type, "text")
    check(answer.stop_reason in ("end_turn", "max_tokens"), str(answer.stop_reason))
    check(answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0, str(answer.usage))


@case()
def message_system(bed):
    """a system text and content in blocks are taken"""
    ask(
        bed,
        system="Be short.",
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        stop_sequences=["\x01\x02"],
        extra_body={"temperature": 0.5, "top_p": 0.9},
    )


@case()
def message_stream(bed):
    """a stream's events are those that the client knows, and add up to the message"""
    with bed.anthropic.messages.stream(
        model=bed.model, max_tokens=8, messages=HELLO, extra_body=GREEDY
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    equal(text, "".join(b.text for b in final.content if b.type == "text"))
    equal(text, ask(bed, extra_body=GREEDY).content[0].text)
    check(final.usage.output_tokens > 0, str(final.usage))


@case()
def message_stop_sequence(bed):
    """a stop sequence ends the text and is named"""
    whole = ask(bed, max_tokens=24, extra_body=GREEDY).content[0].text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    answer = ask(bed, max_tokens=24, extra_body=GREEDY, stop_sequences=[stop])
    equal(answer.stop_reason, "stop_sequence")
    equal(answer.stop_sequence, stop)
    equal(answer.content[0].text, whole[: whole.index(stop)])


def fails(kind, call):
    try:
        call()
    except anthropic.APIStatusError as error:
        check(type(error) is kind, f"{type(error).__name__}: {error}")
        check(error.body["type"] == "error" and error.body["error"]["message"], str(error.body))
        return
    raise AssertionError(f"no {kind.__name__}")


@case()
def message_errors(bed):
    """errors are the client's classes, in Anthropic's shape"""
    fails(anthropic.BadRequestError, lambda: ask(bed, max_tokens=0))
    fails(anthropic.BadRequestError, lambda: ask(bed, messages=[]))
    fails(anthropic.NotFoundError, lambda: ask(bed, model="no-such-model"))
    wrong = bed.anthropic.with_options(api_key="wrong")
    fails(
        anthropic.AuthenticationError,
        lambda: wrong.messages.create(model=bed.model, max_tokens=8, messages=HELLO),
    )


@case()
def message_tokens(bed):
    """count_tokens counts what a message's usage counts"""
    counted = bed.anthropic.messages.count_tokens(model=bed.model, messages=HELLO)
    equal(counted.input_tokens, ask(bed).usage.input_tokens)
