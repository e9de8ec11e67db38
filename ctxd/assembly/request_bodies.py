"""Request bodies of the providers' APIs, rendered from a window. Pure.

A body is a JSON value that the provider's API accepts unchanged: roles alternate where they must, each tool call is
followed by its output, and no text is blank. When a window grows, so does its body: all bytes of a body, except closing
brackets and cache markers, begin the next one. For that, a window must have three properties, which
``append_planner.py`` ensures: system texts first; all outputs of a reply directly after the reply; a user's item at the
end.

Reasoning is sent back only to the model that wrote it and only after the messages that this model had: providers reject
it elsewhere, some of them with the whole request.
"""

import base64
import hashlib
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

import msgspec

from ctxd.assembly.request_target import PROVIDERS, RequestTarget
from ctxd.assembly.window_items import (
    AssistantText,
    ImageItem,
    Picture,
    Reasoning,
    SystemText,
    ToolOutput,
    ToolUse,
    Update,
    UserText,
    WindowItem,
)
from ctxd.epochs.tag_escaping import tagged
from ctxd_protocol.context_types import Block, Omitted, RequestFormat, ToolDeclaration, declared

WINDOW_RENDERER: Final = 4
"""Version of the layout ``append``, kept with every assembly in it. Programs that do not know it reject it."""

WINDOW_RENDERERS: Final = (2, 3, WINDOW_RENDERER)
"""Versions that can be rendered. In version 2, every ``&``, ``<`` and ``>`` of an update is escaped; before version 4,
no update is a system message of the Messages API."""

SYSTEM_UPDATES_SINCE: Final = 4
"""First version in which each update notes whether it is a system message."""


BREAKPOINTS_MAX: Final = 4
"""Maximum cache markers that the Messages API accepts in one request. It looks for an older prefix in the 20 blocks
before each; one marker stays at the end of the last request, however many blocks were added since."""

UNDECLARED: Final = ToolDeclaration(
    name="undeclared_tools",
    description="Stands for tools that this request does not declare. It cannot be called.",
    input_schema={"type": "object"},
)
"""Placeholder for a request without declarations: the Messages API rejects tool calls in a request that declares no
tool."""

Reason = Literal[
    "the format takes no reasoning",
    "another provider wrote it",
    "another model wrote it",
    "the messages before it are not known",
    "the messages before it differ",
    "no reply follows it",
    "it has no signature",
    "it has no encrypted content",
]
"""Why reasoning is left out. A closed set."""

CONTINUE: Final = "Go on."
BEGIN: Final = "The conversation begins with a message of the assistant."
"""Messages of the user at the end and at the beginning of a request, for APIs that require one there."""

NO_REPLY: Final = "[no reply to this came]"
"""Message of the model between a system message and the user's next one: the Messages API requires a reply there."""

_encode: Final = msgspec.json.Encoder().encode
_MARKER: Final = {"type": "ephemeral"}
_FAILED: Final = "[the tool failed]"


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """``body``: for the API, unchanged. ``plain``: its JSON text without cache markers. ``prefix``: the hash of model,
    tools, system prompt and messages, to which reasoning in the answer is bound. ``omitted``: reasoning that was left
    out."""

    body: dict[str, Any]
    plain: bytes
    prefix: str
    omitted: tuple[Omitted, ...]


def request_body(
    items: Sequence[WindowItem],
    target: RequestTarget,
    breakpoints: Collection[int] = (),
    renderer: int = WINDOW_RENDERER,
) -> RequestBody:
    """The request that shows ``items``.

    ``breakpoints``: counts of items after which a cache marker goes, where the API has them. Only the highest three are
    used, as one marker follows the system prompt. ``renderer``: one of ``WINDOW_RENDERERS``.
    """
    api = _APIS[target.format](target, renderer)
    marked = sorted(breakpoints)[1 - BREAKPOINTS_MAX :]
    system = [item.text for item in items if isinstance(item, SystemText)]
    digest = hashlib.sha256(_encode((target.format, target.model, target.tools, system)))
    # Reasoning is bound to the messages before its reply.
    before, omitted = digest.hexdigest(), []
    followers: list[WindowItem | None] = [None] * len(items)
    for at in range(len(items) - 2, -1, -1):
        after = items[at + 1]
        followers[at] = followers[at + 1] if isinstance(after, Reasoning) else after
    for at, item in enumerate(items):
        if isinstance(item, Reasoning):
            refusal = _refusal(item, followers[at], target, before) or api.cannot_take(item)
            if refusal is not None:
                omitted.append(Omitted(place=item.place, kind="reasoning", reason=refusal))
                continue
        if not isinstance(item, SystemText):
            for part in api.add(item):
                digest.update(_encode(part))
            if is_user_side(item):
                before = digest.hexdigest()
        if at + 1 in marked:
            api.mark()
    api.end()
    plain = _encode(api.body(system))
    return RequestBody(body=api.marked(system), plain=plain, prefix=digest.hexdigest(), omitted=tuple(omitted))


def spec_request(blocks: Sequence[Block], target: RequestTarget) -> RequestBody:
    """The request for a context of the layout ``spec``: prompt and pool become the system prompt, the chat becomes the
    conversation, and active content comes at its end. References to tool calls are text, as in that layout."""
    items: list[WindowItem] = []
    for nth, block in enumerate(blocks):
        same: dict[str, Any] = {"key": str(nth), "tokens": block.tokens, "turn": 0, "object": block.object}
        head, _, text = block.text.partition("\n")
        if block.section in ("system_prompt", "metadata_pool"):
            items += [SystemText(**same, text=block.text)] if block.text.strip() else []
        elif head not in ("CHAT_MESSAGE role=assistant", "CHAT_MESSAGE role=user"):
            items.append(UserText(**same, text=block.text))
        elif text.strip():
            items.append((AssistantText if head.endswith("assistant") else UserText)(**same, text=text))
    talk = [item for item in items if not isinstance(item, SystemText)]
    marker = UserText(key="marker", tokens=0, turn=0, text=CONTINUE)
    if not talk or isinstance(talk[-1], AssistantText):
        items.append(marker)
    if talk and isinstance(talk[0], AssistantText):
        items.insert(
            len(items) - len(talk) - isinstance(talk[-1], AssistantText), msgspec.structs.replace(marker, text=BEGIN)
        )
    return request_body(items, target)


def is_user_side(item: WindowItem) -> bool:
    """True for items that go into messages of the user, or of a tool."""
    return isinstance(item, UserText | ImageItem | ToolOutput | Update)


def _shown_text(item: UserText | AssistantText | Update, renderer: int) -> str:
    """The text that the model reads. An update is tagged as one, and text that looks like the tag is escaped."""
    if not isinstance(item, Update):
        return item.text
    if renderer == 2:
        text = item.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return f"<system-update>\n{text}\n</system-update>"
    return tagged("system-update", item.text)


def _data_url(picture: Picture) -> str:
    """The URL of ``picture``: its own, or a data URL with its bytes."""
    if picture.data is None:
        return picture.url or ""
    return f"data:{picture.media_type};base64,{base64.b64encode(picture.data).decode()}"


def _refusal(item: Reasoning, follower: WindowItem | None, target: RequestTarget, before: str) -> Reason | None:
    """Why ``target`` must not get ``item``, None if it may. ``follower``: the next item that is not reasoning;
    ``before``: the hash of the messages before this reply."""
    provider = PROVIDERS[target.format]
    if provider is None:
        return "the format takes no reasoning"
    if item.prefix is None:
        return "the messages before it are not known"
    if item.provider != provider:
        return "another provider wrote it"
    if item.model != target.model:
        return "another model wrote it"
    if item.prefix != before:
        return "the messages before it differ"
    return None if isinstance(follower, AssistantText | ToolUse) else "no reply follows it"


class _Anthropic:
    """Messages API: roles alternate, outputs come first in their message, and all content is in blocks."""

    def __init__(self, target: RequestTarget, renderer: int) -> None:
        self._target = target
        self._renderer = renderer
        self._messages: list[dict[str, Any]] = []
        self._marked: list[dict[str, Any]] = []

    def cannot_take(self, item: Reasoning) -> Reason | None:
        return None if item.signature is not None or item.encrypted is not None else "it has no signature"

    def add(self, item: WindowItem) -> list[dict[str, Any]]:
        """Add ``item``; returns the added parts. A system message comes after one of the user, and before a reply. The
        result depends only on earlier items, so that nothing that was sent changes."""
        last = self._messages[-1]["role"] if self._messages else None
        if isinstance(item, Update) and item.is_system and last == "user":
            return [self._say("system", {"type": "text", "text": item.text})]
        if not is_user_side(item):
            return [self._say("assistant", self._block(item))]
        no_reply = [self._say("assistant", {"type": "text", "text": NO_REPLY})] if last == "system" else []
        return [*no_reply, self._say("user", self._block(item))]

    def _say(self, role: str, block: dict[str, Any]) -> dict[str, Any]:
        if self._messages and self._messages[-1]["role"] == role:
            self._messages[-1]["content"].append(block)
        else:
            self._messages.append({"role": role, "content": [block]})
        return block

    def _block(self, item: WindowItem) -> dict[str, Any]:
        match item:
            case ImageItem():
                return self._image(item.picture)
            case Reasoning():
                if item.signature is None:
                    return {"type": "redacted_thinking", "data": item.encrypted}
                return {"type": "thinking", "thinking": item.text, "signature": item.signature}
            case ToolUse():
                arguments = msgspec.json.decode(item.arguments)
                return {"type": "tool_use", "id": item.call, "name": item.tool, "input": arguments}
            case ToolOutput():
                # The API rejects an error without text, and one with images.
                is_flagged = item.is_error and not item.pictures
                text = item.text
                if item.is_error and (item.pictures or not text.strip()):
                    text = f"{_FAILED}\n{text}" if text.strip() else _FAILED
                content = [{"type": "text", "text": text}] if text.strip() else []
                content += [self._image(picture) for picture in item.pictures]
                block = {"type": "tool_result", "tool_use_id": item.call, "content": content}
                return {**block, "is_error": True} if is_flagged else block
            case UserText() | AssistantText() | Update():
                return {"type": "text", "text": _shown_text(item, self._renderer)}
            case SystemText():
                raise AssertionError("system texts are not messages")

    def _image(self, picture: Picture) -> dict[str, Any]:
        source = {"type": "url", "url": picture.url}
        if picture.data is not None:
            data = base64.b64encode(picture.data).decode()
            source = {"type": "base64", "media_type": picture.media_type, "data": data}
        return {"type": "image", "source": source}

    def mark(self) -> None:
        """Put a cache marker on the user side's last block, which may precede a system message."""
        for message in reversed(self._messages[-2:]):
            if message["role"] != "system":
                if message["role"] == "user":
                    self._marked.append(message["content"][-1])
                return

    def end(self) -> None:
        """Nothing is left to add."""

    def body(self, system: Sequence[str]) -> dict[str, Any]:
        """The body without cache markers."""
        tools = self._target.tools or (UNDECLARED,)
        body: dict[str, Any] = {"model": self._target.model, "max_tokens": self._target.max_tokens}
        body["tools"] = [declared("anthropic-messages", tool) for tool in tools]
        if system:
            body["system"] = [{"type": "text", "text": text} for text in system]
        return {**body, "messages": self._messages}

    def marked(self, system: Sequence[str]) -> dict[str, Any]:
        """The body with its cache markers."""
        for block in self._marked:
            block["cache_control"] = _MARKER
        body = self.body(system)
        body["system" if system else "tools"][-1]["cache_control"] = _MARKER
        return body


class _Responses:
    """Responses API: a list of items, without alternating roles and without cache markers. Nothing is stored there."""

    def __init__(self, target: RequestTarget, renderer: int) -> None:
        self._target = target
        self._renderer = renderer
        self._input: list[dict[str, Any]] = []

    def cannot_take(self, item: Reasoning) -> Reason | None:
        return None if item.encrypted is not None and item.id is not None else "it has no encrypted content"

    def add(self, item: WindowItem) -> list[dict[str, Any]]:
        """Add ``item``; returns the added parts."""
        part = self._part(item)
        self._input.append(part)
        return [part]

    def _part(self, item: WindowItem) -> dict[str, Any]:
        match item:
            case Update(kind="component") if item.is_system is not False:
                return {
                    "type": "message",
                    "role": "developer",
                    "content": [{"type": "input_text", "text": item.text}],
                }
            case UserText() | Update():
                content = [{"type": "input_text", "text": _shown_text(item, self._renderer)}]
                return {"type": "message", "role": "user", "content": content}
            case ImageItem():
                return {"type": "message", "role": "user", "content": [self._image(item.picture)]}
            case AssistantText():
                return {"type": "message", "role": "assistant", "content": item.text}
            case Reasoning():
                summary = [{"type": "summary_text", "text": item.text}] if item.text else []
                encrypted = {"encrypted_content": item.encrypted}
                return {"type": "reasoning", "id": item.id, "summary": summary, **encrypted}
            case ToolUse():
                call = {"call_id": item.call, "name": item.tool, "arguments": item.arguments}
                return {"type": "function_call", **call}
            case ToolOutput():
                text = f"{_FAILED}\n{item.text}" if item.is_error else item.text
                output: Any = text
                if item.pictures:
                    output = [{"type": "input_text", "text": text}, *map(self._image, item.pictures)]
                return {"type": "function_call_output", "call_id": item.call, "output": output}
            case SystemText():
                raise AssertionError("system texts are not messages")

    def _image(self, picture: Picture) -> dict[str, Any]:
        return {"type": "input_image", "detail": "auto", "image_url": _data_url(picture)}

    def mark(self) -> None:
        """Do nothing: the API finds the longest cached prefix by itself."""

    def end(self) -> None:
        """Nothing is left to add."""

    def body(self, system: Sequence[str]) -> dict[str, Any]:
        """The body."""
        target = self._target
        body: dict[str, Any] = {"model": target.model, "store": False, "include": ["reasoning.encrypted_content"]}
        if target.max_tokens is not None:
            body["max_output_tokens"] = target.max_tokens
        if target.cache_key:
            body["prompt_cache_key"] = target.cache_key
        if target.tools:
            body["tools"] = [declared("openai-responses", tool) for tool in target.tools]
        if system:
            body["instructions"] = "\n\n".join(system)
        return {**body, "input": self._input}

    marked = body


class _Chat:
    """Chat Completions: a message of the assistant has separate text and calls, and outputs take no images."""

    def __init__(self, target: RequestTarget, renderer: int) -> None:
        self._target = target
        self._renderer = renderer
        self._messages: list[dict[str, Any]] = []
        self._pictures: list[Picture] = []

    def cannot_take(self, item: Reasoning) -> Reason | None:
        return "the format takes no reasoning"

    def add(self, item: WindowItem) -> list[dict[str, Any]]:
        """Add ``item``; returns the added parts."""
        if not isinstance(item, ToolOutput):
            self.end()
        match item:
            case Update(kind="component") if item.is_system is not False:
                return self._say("system", [{"type": "text", "text": item.text}])
            case UserText() | Update():
                return self._say("user", [{"type": "text", "text": _shown_text(item, self._renderer)}])
            case ImageItem():
                return self._say("user", [self._image(item.picture)])
            case AssistantText():
                part = {"type": "text", "text": item.text}
                self._reply().setdefault("content", []).append(part)
                return [part]
            case ToolUse():
                function = {"name": item.tool, "arguments": item.arguments}
                call = {"id": item.call, "type": "function", "function": function}
                self._reply().setdefault("tool_calls", []).append(call)
                return [call]
            case ToolOutput():
                text = f"{_FAILED}\n{item.text}" if item.is_error else item.text
                self._pictures += item.pictures
                self._messages.append({"role": "tool", "tool_call_id": item.call, "content": text})
                return [self._messages[-1]]
            case SystemText() | Reasoning():
                raise AssertionError("neither is a message of this API")

    def _say(self, role: str, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self._messages.append({"role": role, "content": content})
        return content

    def _reply(self) -> dict[str, Any]:
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant"})
        return self._messages[-1]

    def _image(self, picture: Picture) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": _data_url(picture)}}

    def mark(self) -> None:
        """Do nothing: the API finds the longest cached prefix by itself."""

    def end(self) -> None:
        """Add the images of outputs in a message of the user, after all outputs of their reply."""
        if self._pictures:
            self._say("user", list(map(self._image, self._pictures)))
            self._pictures = []

    def body(self, system: Sequence[str]) -> dict[str, Any]:
        """The body."""
        target = self._target
        body: dict[str, Any] = {"model": target.model}
        if target.max_tokens is not None:
            body["max_completion_tokens"] = target.max_tokens
        if target.cache_key:
            body["prompt_cache_key"] = target.cache_key
        if target.tools:
            body["tools"] = [declared("openai-chat", tool) for tool in target.tools]
        first = [{"role": "system", "content": text} for text in system]
        return {**body, "messages": [*first, *self._messages]}

    marked = body


_APIS: Final[dict[RequestFormat, type[_Anthropic] | type[_Responses] | type[_Chat]]] = {
    "anthropic-messages": _Anthropic,
    "openai-responses": _Responses,
    "openai-chat": _Chat,
}
