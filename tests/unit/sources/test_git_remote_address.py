"""Addresses of remotes: what is one, what are two, and what is not kept of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.sources.git_remote_address import REMOTE_CHARS_MAX, normal_remote

pytestmark = pytest.mark.requirement("LST-2")


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/o/Repo",
        "https://GitHub.com/o/Repo.git",
        "https://user:ghp_secret@github.com:443/o/Repo.git/",
        "http://github.com:80//o/./Repo",
        "https://github.com./o/Repo.git?private_token=x#top",
        "ssh://git@github.com/o/Repo.git",
        "ssh://git@github.com:2222/o/Repo",
        "git+ssh://git@github.com/o/Repo",
        "git@github.com:o/Repo.git",
        "git@GITHUB.com:/o/Repo.git",
        "github.com:o/Repo",
        "git://github.com:9418/o/Repo.git",
        "ssh://git@ssh.github.com:443/o/Repo.git",
        "  git@github.com:o/Repo.git\n",
    ],
)
def test_one_repository_has_one_address(url):
    assert normal_remote(url) == "github.com/o/Repo"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://gitlab.example/a/b/c.git", "gitlab.example/a/b/c"),
        ("http://localhost:3000/o/r", "localhost:3000/o/r"),
        ("https://[2001:DB8::1]:8443/o/r", "[2001:db8::1]:8443/o/r"),
        ("git@[::1]:o/r.git", "[::1]/o/r"),
        ("ssh://host/~me/r.git", "host/~me/r"),
        ("/srv/git/r.git/", "file:/srv/git/r"),
        ("/srv/r/.git", "file:/srv/r"),
        ("file:///srv/git/r", "file:/srv/git/r"),
        ("../r.git", "file:/src/r"),
        ("./with:colon", "file:/src/work/with:colon"),
        ("C:/repo", "file:/src/work/C:/repo"),
        ("codecommit::eu-1://profile@repo", None),
        ("hg::https://me:pw@example.com/o/r", "hg::example.com/o/r"),
        ("gh:o/r", "gh/o/r"),
    ],
)
def test_other_addresses_keep_their_distinguishing_parts(url, expected):
    assert normal_remote(url, "/src/work") == expected


@pytest.mark.parametrize(
    "url", ["", " ", "ext::sh -c evil", "fd::7", "https://", "https:///", "git@host:", "/", "a\x1b[2Jb"]
)
def test_a_url_without_a_place_is_not_an_address(url):
    assert normal_remote(url) is None


def test_an_address_beyond_the_bound_is_not_kept():
    assert normal_remote("https://h/" + "a" * REMOTE_CHARS_MAX) is None


@given(st.text(max_size=80), st.sampled_from(["", "https://u:hunter2@", "ssh://hunter2@", "hunter2@host:", "x::"]))
def test_every_text_is_accepted_and_no_credential_is_kept(text, start):
    found = normal_remote(start + text.replace("hunter2", ""))
    assert found is None or ("hunter2" not in found and found.isprintable())
