"""One bad request hurts only itself; stop strings, Unicode, logprobs and limits (behaviour classes A to E, H to J)."""

import math

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cluster import Cluster, admin_pb2, collect, inference_pb2, request

PROMPT = [5, 17, 300, 41, 7, 99]
CANARY = dict(max_tokens=16, ignore_eos=True)
VOCAB = 512


@pytest.fixture(scope="module")
def canary(tiny):
    return tiny.generate(PROMPT, **CANARY).ids


@pytest.fixture(autouse=True)
def neighbours_live(tiny, canary):
    """After every test: the same ranks, nothing held, and the canary answers as before."""
    pids = tiny.pids()
    yield
    assert tiny.pids() == pids
    assert tiny.generate(PROMPT, **CANARY).ids == canary
    status = tiny.status()
    assert status.running_requests == 0 and status.queued_requests == 0 and status.blocks_held == 0
    assert status.blocks_free + status.blocks_cached == status.blocks_total


def refused(tiny, code, prompt, **options):
    with pytest.raises(grpc.RpcError) as error:
        tiny.generate(prompt, timeout=10, **options)
    assert error.value.code() == code, error.value.details()
    return error.value.details()


INVALID = grpc.StatusCode.INVALID_ARGUMENT


# --- A. Validation ----------------------------------------------------------------------------------


def test_empty_prompts_are_refused(tiny):
    refused(tiny, INVALID, "")
    refused(tiny, INVALID, [])


def test_max_tokens_limits(tiny):
    zero = tiny.generate(PROMPT, max_tokens=0)
    assert zero.ids == [] and zero.finish_reason == "length"
    echoed = tiny.generate(PROMPT, max_tokens=0, echo=True, top_logprobs=0)
    assert len(echoed.choice.prompt_logprobs) == len(PROMPT)
    absent = tiny.generate(PROMPT, ignore_eos=True)
    assert len(absent.ids) == 256 - len(PROMPT), "no max_tokens means to the context's limit"
    assert absent.finish_reason == "length"
    streamed, _ = collect(tiny.stream(PROMPT, ignore_eos=True))
    assert streamed[0].ids == absent.ids and streamed[0].finish_reason == "length"
    for huge in (2**31 - 1, 2**31, 2**32 - 1):
        assert tiny.generate(PROMPT, max_tokens=huge, ignore_eos=True).ids == absent.ids


@pytest.mark.parametrize("ids", [[VOCAB], [2**31], [2**32 - 1], [5, VOCAB, 5]])
def test_token_ids_beyond_the_vocabulary_are_refused(tiny, ids):
    assert str(VOCAB) in refused(tiny, INVALID, ids)
    assert tiny.generate([VOCAB - 1], max_tokens=1)


@pytest.mark.parametrize("ids", [[VOCAB], [VOCAB + 20000], [2**32 - 1]])
def test_stop_ids_beyond_the_vocabulary_are_refused(tiny, ids):
    refused(tiny, INVALID, PROMPT, stop_token_ids=ids, min_tokens=5)


@pytest.mark.parametrize("bad", [
    dict(temperature=float("nan")), dict(temperature=float("inf")), dict(temperature=-1),
    dict(top_p=0), dict(top_p=1.1), dict(top_p=float("nan")), dict(top_k=-5), dict(min_p=-0.1), dict(min_p=1.5),
    dict(repetition_penalty=0), dict(repetition_penalty=-1), dict(repetition_penalty=float("nan")),
    dict(presence_penalty=float("inf")), dict(frequency_penalty=9), dict(logit_bias={VOCAB: 1.0}),
    dict(logit_bias={1: float("nan")}), dict(n=0), dict(n=1000), dict(top_logprobs=100),
    dict(stop_strings=[""]), dict(stop_strings=["a" * 10000]), dict(stop_strings=["a"] * 100),
    dict(model="no-such-model"), dict(generated_token_ids=[VOCAB]), dict(truncate_prompt_tokens=0),
])
def test_bad_parameters_are_refused_by_name(tiny, bad):
    code = grpc.StatusCode.NOT_FOUND if "model" in bad else INVALID
    message = refused(tiny, code, PROMPT, **bad)
    assert next(iter(bad)) in message, message


@pytest.mark.parametrize("temperature", [1e-7, 1e-5, 1e-4])
def test_tiny_temperature_is_greedy(tiny, canary, temperature):
    assert tiny.generate(PROMPT, temperature=temperature, seed=3, **CANARY).ids == canary


def test_prompts_over_the_limit_fail_alone_with_numbers(tiny):
    message = refused(tiny, INVALID, [1] * 5000)
    assert "5000" in message and "255" in message
    # And one that is too long only with what it wants to generate is answered up to the limit.
    assert len(tiny.generate([1] * 250, max_tokens=100, ignore_eos=True).ids) == 6


# A legal value, other than the default, of each field that a client may leave out.
OPTIONAL = dict(
    temperature=0.7, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1, presence_penalty=0.5,
    frequency_penalty=0.5, seed=7, logit_bias={9: -100.0}, max_tokens=12, min_tokens=3, stop_strings=["zqzq"],
    stop_token_ids=[500], ignore_eos=True, include_stop_in_output=True, model=None, n=3, top_logprobs=2,
    echo=True, priority=3, request_id="optional", add_special_tokens=False, skip_special_tokens=False,
    generated_token_ids=[8, 9, 10], truncate_prompt_tokens=40, cache_salt="salt")


def test_every_option_works_on_prompts_of_one_and_of_three_chunks(models):
    fields = {field.name for message in (request(PROMPT), request(PROMPT).sampling, request(PROMPT).stop)
              for field in message.DESCRIPTOR.fields}
    always = {"prompt", "chat", "token_ids", "sampling", "stop", "return_token_ids"}
    assert set(OPTIONAL) == fields - always, "a new field needs a value here"
    together = {name: value for name, value in OPTIONAL.items() if name != "generated_token_ids"}  # that needs n = 1
    cases = [{name: value} for name, value in OPTIONAL.items()] + [together]
    model = models()
    with Cluster(model, "--max-prefill-chunk", 16) as cluster:
        for prompt in PROMPT, [(i * 17 + 3) % 500 for i in range(48)]:
            for options in cases:
                options = {"max_tokens": 8, "seed": 1, **options}
                if "model" in options:
                    options["model"] = model.stem  # what `serve` calls it
                metadata = [("x-priority", "9"), ("shoal-internal", "1"), ("trace-bin", b"\0\xff")]
                first, again = (cluster.stub.Generate(request(prompt, **options), timeout=20, metadata=metadata)
                                for _ in range(2))
                choices = options.get("n", 1)
                assert len(first.choices) == len(again.choices) == choices, options
                assert [c.token_ids for c in first.choices] == [c.token_ids for c in again.choices], options
                kept = min(len(prompt), options.get("truncate_prompt_tokens", len(prompt)))
                assert first.usage.prompt_tokens == kept, options


def test_truncation_keeps_the_end(tiny):
    long = [(i * 7) % 500 for i in range(5000)]
    truncated = tiny.generate(long, truncate_prompt_tokens=200, **CANARY)
    assert truncated.response.usage.prompt_tokens == 200
    assert truncated.ids == tiny.generate(long[-200:], **CANARY).ids


def test_a_running_request_id_is_not_taken_twice(tiny):
    first = tiny.stream(PROMPT, request_id="twice", ignore_eos=True, n=32)  # long enough to be met
    next(first)
    refused(tiny, grpc.StatusCode.ALREADY_EXISTS, PROMPT, request_id="twice")
    first.cancel()


def test_messages_over_the_limit_are_refused(tiny):
    with pytest.raises(grpc.RpcError) as error:
        tiny.generate("a" * (20 << 20))
    assert error.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, INVALID)
    refused(tiny, INVALID, "word " * (800 << 10))  # 4 MiB: within the message's limit, not the context's


def test_odd_unicode_prompts_are_answered(tiny):
    for text in ["\0", "a\0b", "é", "e\u0301", "👩‍👩‍👧‍👦", "\r\n\r\n", "\ufeff", "\u202e", "日本語", " " * 50, "\U0010ffff"]:
        assert tiny.generate(text, max_tokens=2, ignore_eos=True).ids


# --- B, C. Unicode and stop strings ----------------------------------------------------------------------


@pytest.mark.parametrize("character", ["é", "日", "😀"])
def test_a_character_that_spans_tokens_leaves_whole(tiny, character):
    """Each of its bytes is a token here; the model is made to say them in order, and no further than `cut`."""
    ids = tiny.stub.Tokenize(inference_pb2.TokenizeRequest(text=character)).ids
    assert len(ids) == len(character.encode())
    bias = {token: 100.0 - 15 * i for i, token in enumerate(ids)}
    for cut in range(1, len(ids) + 1):
        options = dict(logit_bias=bias, repetition_penalty=100, max_tokens=cut, ignore_eos=True)
        unary = tiny.generate([5, 17, 41, 7], **options)
        streamed, messages = collect(tiny.stream([5, 17, 41, 7], **options))
        assert unary.ids == streamed[0].ids == list(ids[:cut]) and unary.finish_reason == "length"
        want = character if cut == len(ids) else "\ufffd"
        assert unary.text == streamed[0].text == want
        assert [d.text for m in messages for d in m.deltas if d.text] == [want]


def solo_text(tiny, seed):
    return tiny.generate([3, 3, seed], max_tokens=60, ignore_eos=True, temperature=1.5, seed=seed)


def again(tiny, seed, **options):
    return dict(prompt=[3, 3, seed], max_tokens=60, ignore_eos=True, temperature=1.5, seed=seed, **options)


def test_each_delta_is_whole_utf8_and_nothing_is_lost(tiny):
    for seed in range(8):
        options = again(tiny, seed)
        answers, messages = collect(tiny.stream(options.pop("prompt"), **options))
        assert answers[0].text == solo_text(tiny, seed).text
        assert len(messages) > 1


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_at_their_first_place(tiny, include):
    for seed in range(6):
        text = solo_text(tiny, seed).text
        for begin, length in ((3, 4), (7, 9), (11, 2)):
            stop = text[begin:begin + length]
            if not stop.strip("\ufffd"):
                continue
            options = again(tiny, seed, stop_strings=[stop], include_stop_in_output=include)
            prompt = options.pop("prompt")
            want = text[:text.index(stop) + (len(stop) if include else 0)]
            unary = tiny.generate(prompt, **options)
            streamed, _ = collect(tiny.stream(prompt, **options))
            assert unary.text == want and streamed[0].text == want
            assert unary.finish_reason == "stop_string" and unary.choice.stop_string == stop
            assert streamed[0].finish_reason == "stop_string"


def test_a_possible_stop_that_does_not_come_is_flushed(tiny):
    whole = solo_text(tiny, 1)
    options = again(tiny, 1, stop_strings=[whole.text[-2:] + "QQQQ"])
    answers, _ = collect(tiny.stream(options.pop("prompt"), **options))
    assert answers[0].text == whole.text and answers[0].finish_reason == "length"


def test_stop_token_ids_end_the_answer(tiny, canary):
    answer = tiny.generate(PROMPT, stop_token_ids=[canary[5]], **CANARY)
    first = canary.index(canary[5])
    assert answer.ids == canary[:first + 1] and answer.finish_reason == "stop_token"
    assert answer.choice.stop_token_id == canary[5]
    longer = tiny.generate(PROMPT, stop_token_ids=[canary[0]], min_tokens=4, **CANARY)
    assert len(longer.ids) >= 4 and canary[0] not in longer.ids[:4]


def test_end_of_turn_ends_the_answer(tiny):
    info = tiny.stub.GetModel(inference_pb2.GetModelRequest()).model
    assert info.end_token_ids
    end = info.end_token_ids[0]
    forced = tiny.generate(PROMPT, max_tokens=8, logit_bias={end: 100.0})
    assert forced.ids == [end] and forced.finish_reason == "stop_token" and forced.text == ""
    ignored = tiny.generate(PROMPT, max_tokens=8, logit_bias={end: 100.0}, ignore_eos=True)
    assert ignored.ids == [end] * 8 and ignored.finish_reason == "length"


def test_an_end_of_turn_that_is_not_the_end_of_text_ends_the_answer_too(models):
    with Cluster(models(separate_eot=True)) as cluster:
        ends = cluster.end_token_ids()
        assert set(ends) >= {0, 2}, "<|endoftext|> and <|im_end|>"
        for end in ends:
            forced = cluster.generate(PROMPT, max_tokens=8, logit_bias={end: 100.0})
            assert forced.ids == [end] and forced.finish_reason == "stop_token" and forced.text == ""
            streamed, _ = collect(cluster.stream(PROMPT, max_tokens=8, logit_bias={end: 100.0}))
            assert streamed[0].ids == [end] and streamed[0].text == ""


# --- D. Logprobs ---------------------------------------------------------------------------------------


def test_logprobs_are_finite_and_sum_to_at_most_one(tiny):
    answer = tiny.generate(PROMPT, top_k=1, temperature=1.0, top_logprobs=20, echo=True, max_tokens=6, ignore_eos=True,
                           logit_bias={7: -100.0})
    for position in list(answer.choice.logprobs) + list(answer.choice.prompt_logprobs)[1:]:
        total = sum(math.exp(t.logprob) for t in position.top)
        assert total <= 1 + 1e-5 and all(math.isfinite(t.logprob) for t in position.top)
        assert [t.logprob for t in position.top] == sorted((t.logprob for t in position.top), reverse=True)


def test_logprobs_align_with_ids(tiny):
    streamed, _ = collect(tiny.stream(PROMPT, top_logprobs=1, **CANARY))
    unary = tiny.generate(PROMPT, top_logprobs=1, **CANARY)
    assert [p.chosen.token_id for p in unary.choice.logprobs] == unary.ids == streamed[0].ids


# --- E. Tokenizer and template ----------------------------------------------------------------------------


def test_tokenize_round_trips_and_user_text_is_never_control(tiny):
    for text in ["hello world", "<|im_start|>user\n<|im_end|>", "日本語 👩‍👩‍👧‍👦\r\n\0"]:
        ids = tiny.stub.Tokenize(inference_pb2.TokenizeRequest(text=text)).ids
        assert tiny.stub.Detokenize(inference_pb2.DetokenizeRequest(ids=ids)).text == text
    control = tiny.stub.Tokenize(inference_pb2.TokenizeRequest(text="<|im_end|>", parse_special=True)).ids
    assert len(control) == 1
    plain = tiny.stub.Tokenize(inference_pb2.TokenizeRequest(text="<|im_end|>")).ids
    assert control[0] not in plain
    chat = inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="user", content="x<|im_end|>y")])
    applied = tiny.stub.ApplyChatTemplate(inference_pb2.ApplyChatTemplateRequest(chat=chat))
    honest = inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="user", content="xy")])
    expected = tiny.stub.ApplyChatTemplate(inference_pb2.ApplyChatTemplateRequest(chat=honest))
    assert list(applied.ids).count(control[0]) == list(expected.ids).count(control[0])


@pytest.mark.parametrize("text", ["A" * 1_000_000, "\n" * 50_000, "é" * 50_000, "7" * 100_000])
def test_long_runs_are_tokenised_in_time(tiny, text):
    ids = tiny.stub.Tokenize(inference_pb2.TokenizeRequest(text=text), timeout=2).ids
    assert ids


# --- H. Scheduling -----------------------------------------------------------------------------------------


def test_distinct_prompts_at_once_do_not_mix(tiny):
    prompts = [[i, 2 * i % 500, 3 * i % 500, i + 1] for i in range(1, 65)]
    want = [tiny.generate(p, max_tokens=8, ignore_eos=True).ids for p in prompts]
    request_ids = set()
    for _ in range(20):
        responses = [call.result() for call in [tiny.start(p, max_tokens=8, ignore_eos=True) for p in prompts]]
        assert [list(r.choices[0].token_ids) for r in responses] == want
        request_ids |= {r.request_id for r in responses}
    assert len(request_ids) == 20 * 64


def test_rows_of_a_mixed_batch_do_not_mix_their_parameters(tiny, canary):
    """Greedy rows with banned tokens beside seeded ones."""
    greedy = [dict(logit_bias={token: -100.0 for token in canary[i:]}) for i in range(4)]
    seeded = [dict(temperature=0.8, seed=i, top_k=40) for i in range(4)]
    rows = [dict(**options, top_logprobs=1, **CANARY) for options in greedy + seeded]
    want = [tiny.generate(PROMPT, **row) for row in rows]
    assert len({tuple(answer.ids) for answer in want}) == 8
    calls = [tiny.start(PROMPT, **row) for row in rows]
    for call, alone in zip(calls, want):
        choice = call.result().choices[0]
        assert list(choice.token_ids) == alone.ids
        assert list(choice.logprobs) == list(alone.choice.logprobs)


def test_more_choices_than_slots_are_all_answered(models):
    with Cluster(models(), "--max-batch-seqs", 4, tp=2) as cluster:
        answers = cluster.generate_all(PROMPT, n=16, temperature=1.0, seed=1, max_tokens=6, ignore_eos=True)
    assert len(answers) == 16 and all(len(a.ids) == 6 for a in answers)


def test_a_full_queue_refuses_with_a_hint_and_recovers(models):
    with Cluster(models(), "--max-batch-seqs", 2, "--max-queued-requests", 8) as cluster:
        calls = [cluster.start(PROMPT + [i], ignore_eos=True, max_tokens=240) for i in range(50)]
        codes = []
        for call in calls:
            error = call.exception()
            codes.append(error.code() if error else None)
            if error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
                keys = {key for key, _ in error.trailing_metadata()}
                assert "grpc-retry-pushback-ms" in keys and "grpc-status-details-bin" in keys
        assert codes.count(None) >= 8 and codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) >= 10
        assert cluster.generate(PROMPT, max_tokens=2).ids


def test_a_shared_prefix_brought_at_once_is_computed_once(tiny):
    prefix = [(i * 13 + 5) % 500 for i in range(160)]
    before = tiny.status()
    calls = [tiny.start(prefix + [i, i + 1], max_tokens=2, ignore_eos=True) for i in range(16)]
    usages = [call.result().usage for call in calls]
    computed = tiny.status().prompt_tokens - before.prompt_tokens
    assert sum(u.cached_prompt_tokens for u in usages) == 15 * 160
    assert computed == 16 * 162 - 15 * 160


def test_cache_salts_do_not_share(tiny):
    prompt = [(i * 29 + 3) % 500 for i in range(64)]
    assert tiny.generate(prompt, max_tokens=1, cache_salt="a").response.usage.cached_prompt_tokens == 0
    assert tiny.generate(prompt, max_tokens=1, cache_salt="b").response.usage.cached_prompt_tokens == 0
    assert tiny.generate(prompt, max_tokens=1, cache_salt="a").response.usage.cached_prompt_tokens == 48


# --- J. Cancel and deadlines ---------------------------------------------------------------------------------


def test_cancelled_streams_leave_nothing(tiny):
    for i in range(60):
        stream = tiny.stream(PROMPT + [i], ignore_eos=True)
        if i % 3:
            next(stream)
        stream.cancel()
    assert tiny.generate(PROMPT + [1], max_tokens=1).ids


def test_a_cancelled_conversation_keeps_its_cache(tiny):
    prompt = [(i * 31 + 11) % 500 for i in range(100)]
    stream = tiny.stream(prompt, ignore_eos=True)
    while not any(delta.token_ids for delta in next(stream).deltas):
        pass
    stream.cancel()
    assert tiny.generate(prompt + [1] * 5, max_tokens=1).response.usage.cached_prompt_tokens == 96


def test_a_deadline_ends_the_request(tiny):
    with pytest.raises(grpc.RpcError) as error:
        tiny.generate_all(PROMPT, n=32, ignore_eos=True, temperature=1.0, timeout=0.05)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_an_operator_cancels_by_id(tiny):
    stream = tiny.stream(PROMPT, request_id="to-cancel", ignore_eos=True, max_tokens=240)
    next(stream)
    listed = tiny.admin.ListRequests(admin_pb2.ListRequestsRequest()).requests
    if any(r.request_id == "to-cancel" for r in listed):
        try:
            tiny.admin.CancelRequest(admin_pb2.CancelRequestRequest(request_id="to-cancel", reason="test"))
        except grpc.RpcError as error:  # it may have ended just now
            assert error.code() == grpc.StatusCode.NOT_FOUND
    try:
        for _ in stream:
            pass
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.CANCELLED and "test" in error.details()
    with pytest.raises(grpc.RpcError) as error:
        tiny.admin.CancelRequest(admin_pb2.CancelRequestRequest(request_id="no-such"))
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_slow_reader_slows_nobody(tiny):
    slow = tiny.stream(PROMPT, ignore_eos=True)
    next(slow)
    assert tiny.generate([9, 9, 9], max_tokens=30, ignore_eos=True).ids
    assert sum(len(d.token_ids) for m in slow for d in m.deltas) > 0


# --- K. Plumbing ---------------------------------------------------------------------------------------------


def test_health_and_reflection(tiny):
    health = health_pb2_grpc.HealthStub(tiny.channel)
    for service in ("", "readiness", "shoal.v1.InferenceService"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, service
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
    assert "shoal.v1.InferenceService" in ProtoReflectionDescriptorDatabase(tiny.channel).get_services()


def test_frequent_pings_are_no_abuse(tiny):
    options = [("grpc.keepalive_time_ms", 20000), ("grpc.keepalive_permit_without_calls", 1),
               ("grpc.http2.max_pings_without_data", 0)]
    channel = grpc.insecure_channel(tiny.address, options=options)
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=5).status


def test_request_ids_come_back(tiny):
    response, call = tiny.stub.Generate.with_call(request(PROMPT, request_id="mine", max_tokens=1))
    assert response.request_id == "mine" and ("x-request-id", "mine") in call.initial_metadata()
    assert tiny.generate(PROMPT, max_tokens=1).response.request_id


def test_the_first_message_has_seed_and_the_last_usage(tiny):
    _, messages = collect(tiny.stream(PROMPT, temperature=1.0, max_tokens=5, ignore_eos=True))
    assert messages[0].HasField("seed") and messages[0].numerics_id
    assert messages[0].usage.prompt_tokens == len(PROMPT)
    assert messages[-1].usage.completion_tokens == 5
    repeat, _ = collect(tiny.stream(PROMPT, temperature=1.0, seed=messages[0].seed, max_tokens=5, ignore_eos=True))
    assert repeat[0].ids == [i for m in messages for d in m.deltas for i in d.token_ids]
