"""Findings in stored versions."""

from ctxd.objects.document import toolcall
from ctxd.secrets.redaction import Guard
from ctxd.secrets.scanner import Scanner
from ctxd.sessions import secret_redaction
from tests.suites.secret_corpus import made_up

TOKEN = made_up("github-token")


def test_each_line_on_which_a_secret_begins_is_named_once() -> None:
    content = f"\n{TOKEN} {TOKEN}\n\nnothing\n{TOKEN}"
    document = toolcall("c", tool="Bash", args={}, content=content, chat_ref="chat:s")
    found = secret_redaction.scanned(Guard(Scanner(), bytes(32)), document)
    assert found is not None and found.lines == (2, 5)


def test_the_lines_of_many_secrets_are_counted_in_one_pass(monkeypatch) -> None:
    counted = 0

    class Text(str):
        __slots__ = ()

        def encode(self, *_):
            return Data(super().encode())

    class Data(bytes):
        def count(self, part, start, end):
            nonlocal counted
            counted += end - start
            return super().count(part, start, end)

    monkeypatch.setattr(secret_redaction, "require_text", Text)
    content = f"{TOKEN}\n" * 200
    document = toolcall("c", tool="Bash", args={}, content=content, chat_ref="chat:s")
    found = secret_redaction.scanned(Guard(Scanner(), bytes(32)), document)
    assert found is not None and found.lines == tuple(range(1, 201))
    assert counted <= len(content)
