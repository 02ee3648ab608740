"""Conversations, and the prompts that a model's chat template makes of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from drawlot.errors import ModelError, ParameterError

Message = Mapping[str, str]
Conversation = Sequence[Message]


def conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """One conversation or several, as a list.

    Raises:
        ParameterError: A conversation is empty, or a message is no mapping with the texts `role` and `content`.
    """
    nested = isinstance(messages, Sequence) and not isinstance(messages, str)
    several = nested and bool(messages) and not isinstance(messages[0], str | Mapping)
    checked: list[Any] = list(messages) if several else [messages]
    for conversation in checked:
        if isinstance(conversation, str | Mapping) or not isinstance(conversation, Sequence) or not conversation:
            raise ParameterError("messages", "a conversation must be a list of messages, not empty", conversation)
        for message in conversation:
            if not isinstance(message, Mapping):
                raise ParameterError("messages", "must hold mappings with role and content", message)
            for key in ("role", "content"):
                if not isinstance(message.get(key), str):
                    raise ParameterError("messages", f"{key} must be a string", message.get(key))
    return checked


def require_template(tokenizer: Any) -> None:
    """Check that the model can chat.

    Raises:
        ModelError: It has no chat template.
    """
    if not tokenizer.chat_template:
        raise ModelError("the model has no chat template; it can complete text (generate) but not chat")


def render(tokenizer: Any, conversation: Conversation) -> list[int]:
    """The token ids of a conversation, up to where the assistant speaks.

    Raises:
        ModelError: The model has no chat template.
        ParameterError: The template refuses the conversation, for example its order of roles.
    """
    from jinja2 import TemplateError

    require_template(tokenizer)
    try:
        messages = [dict(message) for message in conversation]
        ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    except TemplateError as error:
        raise ParameterError("messages", f"the chat template refuses them ({error})", conversation) from None
    return ids
