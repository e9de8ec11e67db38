"""No secret leaves by the log."""

import io

import pytest

from ctxd.observe.logs import open_log
from tests.suites.secret_corpus import FAMILIES, made_up

_LOOSE = {"aws-secret-key", "azure-storage-key", "slack-webhook", "url-credentials", "authorization-header"}


@pytest.mark.requirement("SEC-6")
@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in _LOOSE and "assigned" not in family])
def test_a_secret_in_a_name_a_value_or_a_trace_is_redacted(format, family):
    secret = made_up(family)
    stream = io.StringIO()
    log = open_log(format=format, stream=stream)
    log.info("call.failed", method="file.index", path=f"/srv/{secret}", nested={"deep": [f"x {secret}"]})
    try:
        raise ValueError(f"cannot use {secret}")
    except ValueError:
        log.exception("failed")
    line = secret.splitlines()[1] if "\n" in secret else secret
    assert line not in stream.getvalue()
    assert f"[REDACTED:{family}:" in stream.getvalue()


@pytest.mark.requirement("SEC-6")
def test_log_fields_without_secrets_are_unchanged():
    stream = io.StringIO()
    open_log(format="json", stream=stream).info("daemon.ready", socket="/run/ctxd.sock", pid=7)
    assert '"socket": "/run/ctxd.sock", "pid": 7' in stream.getvalue()
    assert "REDACTED" not in stream.getvalue()
