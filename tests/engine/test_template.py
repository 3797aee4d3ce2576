import pytest

from kvd.engine.template import split_template, text_between_turns
from kvd.errors import ModelError

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ bos_token }}[INST] {{ messages[0].content }} [/INST]"
)


def test_splits_around_the_users_words() -> None:
    before, after = split_template(CHATML, "Be brief.", "<s>", "</s>")
    assert before == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    assert after == "<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_without_a_system_role_gets_the_instructions_from_the_user() -> None:
    assert split_template(NO_SYSTEM, "Be brief.", "<s>", "</s>") == ("<s>[INST] Be brief.\n\n", " [/INST]")


def test_a_base_model_gets_plain_text() -> None:
    assert split_template(None, "Be brief.", "<s>", "</s>") == ("Be brief.\n\n", "\n\n")


@pytest.mark.parametrize(
    "template",
    [
        "{{ nonsense",
        "no messages at all",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages[1].content }}",
    ],
)
def test_a_template_that_cannot_be_used_is_a_model_error(template: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        split_template(template, "Be brief.", "<s>", "</s>")


def test_the_prefix_does_not_change_with_the_day() -> None:
    template = "{{ strftime_now('%d %b %Y') }} " + CHATML
    assert split_template(template, "x", "", "")[0].startswith("01 Jan 2024 ")


def test_what_stands_between_two_turns() -> None:
    between = text_between_turns(CHATML, "Be brief.", "<s>", "</s>")
    assert between == "<|im_end|>\n<|im_start|>user\n"
    assert text_between_turns(None, "Be brief.", "<s>", "</s>") == "\n\n"
    # Earlier answers may be printed with less than was generated, or begin otherwise.
    thinks = CHATML.replace(
        "message.content +", "('(thought)' if message.role == 'assistant' else '') + message.content +"
    )
    assert text_between_turns(thinks, "Be brief.", "<s>", "</s>") == between


def test_a_template_that_knows_one_question_has_no_between() -> None:
    assert text_between_turns(NO_SYSTEM, "Be brief.", "<s>", "</s>") is None
