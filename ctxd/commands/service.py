"""``ctxd service``: install and remove systemd units, shell completions and man pages."""

import hashlib
import os
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

import click
import msgspec

from ctxd import __version__
from ctxd.click_support import FAILURE, SHELLS, Stop, completion_script
from ctxd.commands.command_support import AbsolutePath, json_option, show
from ctxd.commands.service_manuals import manual

_USER_UNITS: Final = ("ctxd.service", "ctxd.socket")
_SYSTEM_FILES: Final = {
    "ctxd.service": "etc/systemd/system/ctxd.service",
    "ctxd.socket": "etc/systemd/system/ctxd.socket",
    "ctxd.sysusers.conf": "usr/lib/sysusers.d/ctxd.conf",
    "ctxd.tmpfiles.conf": "usr/lib/tmpfiles.d/ctxd.conf",
}
_COMPLETIONS: Final = {
    "bash": "share/bash-completion/completions/{program}",
    "zsh": "share/zsh/site-functions/_{program}",
    "fish": "share/fish/vendor_completions.d/{program}.fish",
}
_NEXT_USER: Final = ("systemctl --user daemon-reload", "systemctl --user enable --now ctxd.socket ctxd.service")
_NEXT_SYSTEM: Final = (
    "systemd-sysusers",
    "systemd-tmpfiles --create",
    "systemctl daemon-reload",
    "systemctl enable --now ctxd.socket ctxd.service",
)


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """Installed files: path below the root to SHA-256 of the installed content."""

    files: dict[str, str]


_REMEDY: Final = "run as root, or without --system"


@click.group()
def service() -> None:
    """Install or remove the systemd service, shell completions and man pages.

    \b
    Examples:
      ctxd service install               for this user
      ctxd service install --system      for the host, as root
    """


_dry_run_option = click.option("--dry-run", is_flag=True, help="Print the files that would change; change nothing.")
_system_option = click.option("--system", is_flag=True, help="For the whole host instead of this user; needs root.")
_root_option = click.option("--root", type=AbsolutePath(), default=Path("/"), help="Install below this directory.")


@service.command()
@_system_option
@_root_option
@click.option("--program", help="Path of ctxd in the units [default: this program].")
@_dry_run_option
@json_option
def install(system: bool, root: Path, program: str | None, dry_run: bool, as_json: bool) -> None:
    """Install or upgrade the service. Files that were changed since the last installation are kept.

    \b
    Examples:
      ctxd service install
      ctxd service install --dry-run
      ctxd service install --system --root "$DESTDIR" --program /usr/bin/ctxd
    """
    known = _read(_manifest_path(system, root))
    written: dict[str, str] = {}
    kept: list[str] = []
    try:
        for path, text in _contents(system, root, program or _this_program()):
            name, digest = str(path.relative_to(root)), hashlib.sha256(text.encode()).hexdigest()
            if path.exists() and _digest(path) not in (known.files.get(name), digest):
                kept.append(str(path))
                continue
            if not dry_run:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            written[name] = digest
        if not dry_run:
            _write_manifest(_manifest_path(system, root), Manifest({**known.files, **written}))
    except OSError as error:
        raise Stop(FAILURE, f"cannot write {error.filename}: {error.strerror}", hint=_REMEDY) from error
    steps = _NEXT_SYSTEM if system else _NEXT_USER
    installed = [str(root / name) for name in written]
    done, stays = ("would install", "would keep") if dry_run else ("installed", "kept")
    lines = [f"{done} {path}" for path in installed]
    lines += [f"{stays} {path}: it was changed; remove it and install again to replace it" for path in kept]
    lines += [] if dry_run else ["", "Next:", *(f"  {step}" for step in steps)]
    show(as_json, {"installed": installed, "kept": kept, "next": steps, "dry_run": dry_run}, "\n".join(lines))
    sys.exit(int(bool(kept)))


@service.command()
@_system_option
@_root_option
@_dry_run_option
@json_option
def uninstall(system: bool, root: Path, dry_run: bool, as_json: bool) -> None:
    """Remove the installed files; changed ones stay.

    State and settings stay too.

    \b
    Examples:
      systemctl --user disable --now ctxd.socket ctxd.service
      ctxd service uninstall
    """
    manifest = _manifest_path(system, root)
    known = _read(manifest)
    removed: list[str] = []
    kept: list[str] = []
    try:
        for name, digest in known.files.items():
            path = root / name
            if path.exists() and _digest(path) != digest:
                kept.append(str(path))
                continue
            if not dry_run:
                path.unlink(missing_ok=True)
            removed.append(str(path))
        if not dry_run:
            manifest.unlink(missing_ok=True)
    except OSError as error:
        raise Stop(FAILURE, f"cannot remove {error.filename}: {error.strerror}", hint=_REMEDY) from error
    done, stays = ("would remove", "would keep") if dry_run else ("removed", "kept")
    lines = [f"{done} {path}" for path in removed]
    lines += [f"{stays} {path}: it was changed; remove it by hand" for path in kept]
    document = {"removed": removed, "kept": kept, "dry_run": dry_run}
    show(as_json, document, "\n".join(lines) or "nothing was installed")


def _contents(system: bool, root: Path, program: str) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every file."""
    # The units are beside the code in a wheel, and at the top level of a checkout.
    packaged = files("ctxd.service") / "units"
    units = packaged if packaged.is_dir() else files("ctxd") / ".." / "systemd"
    if system:
        for name, place in _SYSTEM_FILES.items():
            text = (units / name).read_text(encoding="utf-8")
            yield root / place, text.replace("ExecStart=/usr/local/bin/ctxd", f"ExecStart={program}")
    else:
        for name in _USER_UNITS:
            text = (units / "user" / name).read_text(encoding="utf-8")
            folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
            yield _below(root, folder / "systemd/user" / name), text.replace("%h/.local/bin/ctxd", program)
    data = root / "usr/local" if system else _below(root, Path.home() / ".local")
    from ctxd.cli.main import cli as ctx_program

    ctxd_program = click.get_current_context().find_root().command
    assert isinstance(ctxd_program, click.Group), "the program is a group of commands"
    for name, command in (("ctx", ctx_program), ("ctxd", ctxd_program)):
        for shell in SHELLS:
            yield data / _COMPLETIONS[shell].format(program=name), completion_script(shell, name, command)
        yield data / "share/man/man1" / f"{name}.1", manual(command, name, __version__)


def _this_program() -> str:
    """Return the path of the running ``ctxd`` executable, even if it was started as ``python -m ctxd``."""
    started = Path(sys.argv[0]).absolute()
    return str(started if started.name == "ctxd" else Path(sys.executable).with_name("ctxd"))


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _manifest_path(system: bool, root: Path) -> Path:
    if system:
        return root / "usr/local/share/ctxd/installed.json"
    return _below(root, Path.home() / ".local/share/ctxd/installed.json")


def _read(path: Path) -> Manifest:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return Manifest({})
    except msgspec.DecodeError as error:
        raise Stop(
            FAILURE, f"{path} is damaged: {error}", hint="remove it, and the files that ctxd installed, by hand"
        ) from error


def _write_manifest(path: Path, manifest: Manifest) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
