import pytest

from drawlot.errors import InputError, ModelError, ParameterError
from drawlot.params import SamplingParams

pytestmark = pytest.mark.usefixtures("fake_engine")


@pytest.fixture
def llm(fake_engine):
    from drawlot.entrypoints.llm import LLM

    return LLM(max_num_seqs=2)


def texts(outputs):
    return [[completion.text for completion in output.outputs] for output in outputs]


def test_one_prompt_is_a_list_of_one(llm):
    assert texts(llm.generate("abc")) == [["abc"]]
    assert texts(llm.generate([97, 98])) == [["ab"]]


def test_outputs_are_in_the_order_of_the_prompts(llm):
    # The fake engine runs the last prompts first.
    assert texts(llm.generate(["long prompt", [98], "c", "dd"])) == [["long prompt"], ["b"], ["c"], ["dd"]]
    assert llm.generate([]) == []


def test_parameters_for_each_prompt(llm):
    params = [SamplingParams(max_tokens=1), SamplingParams(n=2)]
    assert texts(llm.generate(["ab", "cd"], params)) == [["a"], ["cd", "cdcd"]]


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("", None, "prompt: must not be empty; got ''"),
        (["ab", ""], None, "prompts[1]: prompt: must not be empty; got ''"),
        (["ab", 3], None, "prompts: must hold texts or lists of token ids; got 3"),
        (["ab", [1.5]], None, "prompts: must hold texts or lists of token ids"),
        (7, None, "prompts: must hold texts or lists of token ids; got 7"),
        (["a", "b"], [SamplingParams()], "sampling_params: must be one, or one for each prompt (2); got '1 given'"),
        ("a", {"n": 2}, "sampling_params: must be SamplingParams, or a list of them; got 'n'"),
        (
            ["a", "b"],
            [SamplingParams(), SamplingParams(stop_token_ids=[256])],
            "prompts[1]: stop_token_ids: token ids must be in",
        ),
        ("a", SamplingParams(logprobs=21), "logprobs: must be in [0, 20]"),
    ],
)
def test_all_is_checked_before_any_work(llm, prompts, params, message):
    with pytest.raises(ParameterError) as raised:
        llm.generate(prompts, params)
    assert str(raised.value).startswith(message)
    assert not [entry for entry in llm.engine.log if entry[0] == "step"]
    assert not llm.engine.has_unfinished_requests()
    assert texts(llm.generate("ok")) == [["ok"]]


def test_unknown_engine_arguments_name_the_nearest():
    from drawlot.entrypoints.llm import LLM

    with pytest.raises(ParameterError, match="the nearest is max_model_len"):
        LLM(max_model_length=3)


def test_stream_grows_and_leaving_it_aborts(llm):
    stream = llm.stream("abc")
    assert [output.outputs[0].text for _, output in (next(stream), next(stream))] == ["a", "ab"]
    with pytest.raises(InputError, match="another stream"):
        llm.generate("x")
    stream.close()
    assert llm.engine.log[-1] == ("abort", "0")
    assert texts(llm.generate("x")) == [["x"]]


def test_progress_is_quiet_where_stderr_is_no_terminal(llm, capsys):
    llm.generate(["a", "b"])
    assert capsys.readouterr() == ("", "")


def test_chat_renders_the_template(llm):
    llm.engine.tokenizer.chat_template = "any"
    turn = {"role": "user", "content": "hi"}
    assert texts(llm.chat([turn])) == [["[user]hi"]]
    assert texts(llm.chat([[turn], [turn, turn]], SamplingParams(max_tokens=99))) == [["[user]hi"], ["[user]hi" * 2]]


def test_a_model_without_chat_template_says_so(llm):
    with pytest.raises(ModelError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "messages",
    ["hi", [], [[]], ["hi"], {"role": "user", "content": "hi"}, [{"role": "user"}], [{"role": "user", "content": 3}]],
)
def test_bad_messages(llm, messages):
    llm.engine.tokenizer.chat_template = "any"
    with pytest.raises(ParameterError, match=r"^messages: "):
        llm.chat(messages)


def test_score_reads_the_query_first_and_then_the_items(llm):
    first, second = llm.score("q", ["x", [5, 6]], [3, 4], apply_softmax=False)
    assert first.prompt_token_ids == [1, ord("q"), ord("x")]
    assert second.prompt_token_ids == [1, ord("q"), 5, 6]
    # The fake's logprob of a label is -(label + length of the prompt).
    assert first.scores == pytest.approx([2.718281828459045**-6, 2.718281828459045**-7])
    assert llm.engine.log[:2] == [("score", [1, ord("q")]), ("step", 1)]


def test_score_with_the_item_first_shares_no_prefix(llm):
    [result] = llm.score([7, 8], ["x"], [3, 4], item_first=True)
    assert result.prompt_token_ids == [ord("x"), 7, 8]
    assert sum(result.scores) == pytest.approx(1.0)
    assert [entry for entry in llm.engine.log if entry[0] == "score"] == [("score", [ord("x"), 7, 8])]


@pytest.mark.parametrize(
    ("items", "labels", "field"),
    [([], [3], "items"), ("xy", [3], "items"), ([3.5], [3], "query and items"), (["x"], [256], "label_token_ids")],
)
def test_bad_scoring_requests(llm, items, labels, field):
    with pytest.raises(ParameterError) as raised:
        llm.score("q", items, labels)
    assert raised.value.field == field
    assert llm.engine.log == []
