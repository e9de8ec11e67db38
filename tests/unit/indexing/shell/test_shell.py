"""How a shell command's text is taken apart."""

import pytest

from ctxd.indexing.shell.parser import CommandGroup, ForLoop, Script, Simple, heredoc, parse


def words(script: Script) -> list[list[list[str]]]:
    """Pipelines of stages of words; groups and loops as the words inside."""
    found = []
    for pipeline in script.pipelines:
        stages = []
        for stage in pipeline.stages:
            if isinstance(stage, Simple):
                stages.append([word.text for word in stage.words])
            else:
                stages.append([text for line in words(stage.body) for part in line for text in part])
        found.append(stages)
    return found


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ls -la src", [[["ls", "-la", "src"]]]),
        ("cat 'a b' \"c d\" e\\ f", [[["cat", "a b", "c d", "e f"]]]),
        ("a && b || c; d\ne & f", [[["a"]], [["b"]], [["c"]], [["d"]], [["e"]], [["f"]]]),
        ("a | b |& c", [[["a"], ["b"], ["c"]]]),
        ("ls # not a file.py", [[["ls"]]]),
        ("echo a#b", [[["echo", "a#b"]]]),
        ("(cd x && ls) | head", [[["cd", "x", "ls"], ["head"]]]),
        ("if [ -f x ]; then cat x; fi", [[["[", "-f", "x", "]"]], [["cat", "x"]]]),
        ("cat <<'EOF' > out\n$(ls) 'x\nEOF\nls y", [[["cat"]], [["ls", "y"]]]),
        ("cat a{1,2}/f.py", [[["cat", "a1/f.py", "a2/f.py"]]]),
        ("cat 'a{1,2}'", [[["cat", "a{1,2}"]]]),
        ("while read f; do cat x; done; ls", [[["read", "f", "cat", "x"]], [["ls"]]]),
    ],
)
def test_words_pipelines_and_lists_are_split_as_in_a_shell(command: str, expected: list):
    assert words(parse(command)) == expected


def test_unknowable_parts_of_a_word_are_marked():
    (simple,) = parse("cat $x $(ls) ~/a *.py `b` 'lit*'").pipelines[0].stages
    assert isinstance(simple, Simple)
    _, variable, substituted, home, glob, ticks, literal = simple.words
    assert variable.text == "\0x\0"
    assert (substituted.opaque, home.opaque, ticks.opaque) == (True, True, True)
    assert glob.glob
    assert not literal.glob


def test_redirections_are_not_words():
    (simple,) = parse("make > out.log 2>&1 < in.txt 2>/dev/null").pipelines[0].stages
    assert isinstance(simple, Simple)
    assert [word.text for word in simple.words] == ["make"]
    assert [(r.fd, r.op, r.target.text) for r in simple.redirects] == [
        ("", ">", "out.log"),
        ("2", ">&", ""),
        ("", "<", "in.txt"),
        ("2", ">", "/dev/null"),
    ]


def test_a_here_document_is_kept_with_its_command():
    (simple,) = parse("apply <<-X\n\tone\n\ttwo\n\tX\n").pipelines[0].stages
    assert isinstance(simple, Simple)
    assert heredoc(simple.redirects[0]) == ["\tone", "\ttwo"]


def test_a_substitution_inside_a_here_document_s_quotes_does_not_end_early():
    script = parse("git commit -m \"$(cat <<'EOF'\nan (odd message\nEOF\n)\" && git push")
    assert [stages[0][:2] for stages in words(script)] == [["git", "commit"], ["git", "push"]]


def test_loops_keep_their_words_and_their_body():
    (loop,) = parse("for f in a.py b.py; do cat $f; done").pipelines[0].stages
    assert isinstance(loop, ForLoop)
    assert [word.text for word in loop.words] == ["a.py", "b.py"]
    assert words(loop.body) == [[["cat", "\0f\0"]]]


def test_a_subshell_is_distinguished_from_a_group():
    (first,), (second,) = (pipeline.stages for pipeline in parse("(cd a); { cd b; }").pipelines)
    assert isinstance(first, CommandGroup) and first.subshell
    assert isinstance(second, CommandGroup) and not second.subshell
