"""What is tracked, for whom, and in which state."""

from ctxd.trackers.tracked_files import DELETED, NOT_YET, UNREACHABLE, TrackedFiles


def taken(
    tracked: TrackedFiles, session: str, key: str, path: str, *, known: bool = False
) -> tuple[list[str], list[str]]:
    """Lease and place a file, as if nothing were a link."""
    directory, _, name = path.rpartition("/")
    if tracked.lease(session, key, path, known=known, now_ms=0):
        return tracked.place(key, [(directory, name)])
    return [], []


def test_a_directory_is_needed_from_its_first_file_to_its_last_however_many_sessions_follow() -> None:
    tracked = TrackedFiles()
    assert taken(tracked, "s1", "a", "/d/a") == (["/d"], [])
    assert taken(tracked, "s1", "b", "/d/b") == ([], [])
    for session in ("s2", "s3"):
        assert taken(tracked, session, "a", "/d/a") == ([], [])
    assert tracked.release("s1") == ["b"]
    assert tracked.forget("b") == []
    assert tracked.release("s2") == []
    assert tracked.release("s3") == ["a"]
    assert tracked.forget("a") == ["/d"]
    assert (tracked.files, tracked.directories, tracked.unwatched) == ({}, {}, {})


def test_a_change_applies_to_every_file_at_its_place() -> None:
    tracked = TrackedFiles()
    taken(tracked, "s", "a", "/d/a")
    taken(tracked, "s", "link", "/d/link")
    assert tracked.place("link", [("/d", "link"), ("/far", "target"), ("/d", "a")]) == (["/far"], [])
    assert set(tracked.keys_at("/d", "a")) == {"a", "link"}
    assert tracked.keys_at("/far", "target") == ("link",)
    assert tracked.keys_at("/d", "other") == tracked.keys_at("/none", "a") == ()
    assert tracked.place("link", [("/d", "link")]) == ([], ["/far"])


def test_a_file_is_attached_then_orphaned_with_its_directory_then_resumed() -> None:
    tracked = TrackedFiles()
    taken(tracked, "s", "a", "/d/a")
    file = tracked.files["a"]
    assert (file.state, file.reason) == ("orphaned", NOT_YET)
    assert tracked.follow("/d", "watched", "", 10)
    assert (file.state, file.reason, file.since) == ("attached", "", 10)
    assert tracked.follow("/d", "away", "it was moved", 20)
    assert (file.state, file.reason, file.since) == ("orphaned", "it was moved", 20)
    assert tracked.follow("/d", "polled", "no watch is left", 30)
    assert (file.state, file.reason, file.since) == ("resumed", "no watch is left", 30)
    assert tracked.follow("/d", "watched", "", 40)
    assert (file.state, file.reason, file.since) == ("resumed", "", 30), "it was followed all along"
    assert not tracked.follow("/d", "watched", "", 50)


def test_a_file_tracked_in_an_earlier_life_is_resumed_at_once() -> None:
    tracked = TrackedFiles()
    taken(tracked, "s", "a", "/d/a", known=True)
    tracked.follow("/d", "watched", "", 10)
    assert tracked.files["a"].state == "resumed"


def test_a_deleted_file_is_orphaned_until_it_is_there_again() -> None:
    tracked = TrackedFiles()
    taken(tracked, "s", "a", "/d/a")
    tracked.follow("/d", "watched", "", 10)
    tracked.found("a", False, 20)
    file = tracked.files["a"]
    assert (file.state, file.reason, file.since) == ("orphaned", DELETED, 20)
    tracked.found("a", None, 25)
    assert (file.state, file.reason, file.since) == ("orphaned", UNREACHABLE, 20)
    tracked.found("a", True, 30)
    assert (file.state, file.reason) == ("resumed", "")


def test_only_files_without_change_events_are_polled() -> None:
    tracked = TrackedFiles()
    taken(tracked, "s", "a", "/d/a")
    taken(tracked, "s", "b", "/d/b")
    assert sorted(tracked.polled_names("/d")) == ["a", "b"]
    tracked.follow("/d", "watched", "", 0)
    assert tracked.polled_names("/d") == []
    tracked.place("b", [("/d", "b")], linked=True)
    assert tracked.polled_names("/d") == ["b"], "what is written through another name is not told"


def test_leases_end_at_their_time_unless_they_are_renewed() -> None:
    tracked = TrackedFiles()
    tracked.leases["s1"] = 10.0
    tracked.leases["s2"] = 20.0
    assert tracked.expired(10.0) == ["s1"]
    tracked.leases["s1"] = 30.0
    assert tracked.expired(25.0) == ["s2"]
    tracked.release("s2")
    assert tracked.expired(99.0) == ["s1"]
    assert "s2" not in tracked.leases


def test_a_file_is_orphaned_since_its_lease_until_its_directory_is_watched() -> None:
    tracked = TrackedFiles()
    assert tracked.lease("s", "a", "/d/a", known=False, now_ms=7)
    assert (tracked.files["a"].state, tracked.files["a"].since) == ("orphaned", 7)
