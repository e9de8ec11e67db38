"""Environment and date as components: the place where the agent of a session works, and the day."""

import platform
from collections.abc import Iterable, Mapping
from datetime import date, datetime, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from ctxd.clock import Clock
from ctxd.epochs.component import Component, Loaded, UnavailableComponent
from ctxd.epochs.component_files import AgentFiles, AgentPath, directories_above, nearest_repository
from ctxd.epochs.tag_escaping import one_line
from ctxd.errors import CtxdError
from ctxd.mounts.mapping import normalise
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.worker_threads import in_thread

ENVIRONMENT_KEY: Final = "core/environment"
DATE_KEY: Final = "core/date"

_HEAD: Final = "ref: refs/heads/"
_LINK: Final = "gitdir:"


class Environment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Environment of an agent. ``repository``: root of the git repository, None without one; ``branch``: None if no
    branch is checked out; ``shell``: None if unknown."""

    platform: str
    workdir: str
    repository: str | None = None
    branch: str | None = None
    shell: str | None = None


class EnvironmentComponent(Component[Environment]):
    """Component of the environment, which was determined before."""

    value_type = Environment

    def __init__(self, loaded: Loaded[Environment] | UnavailableComponent) -> None:
        super().__init__(ENVIRONMENT_KEY)
        self._loaded = loaded

    async def load(self) -> Loaded[Environment] | UnavailableComponent:
        """See ``Component``."""
        return self._loaded

    def baseline(self, value: Environment) -> str:
        """See ``Component``."""
        return f"Environment:\n{_lines(value)}"

    def update(self, previous: Environment, current: Environment) -> str:
        """See ``Component``."""
        return f"The environment changed. It is now:\n{_lines(current)}"


def _lines(value: Environment) -> str:
    lines = [f"- Platform: {value.platform}", f"- Working directory: {one_line(value.workdir)}"]
    if value.repository is not None:
        branch = "no branch checked out" if value.branch is None else f"branch {one_line(value.branch)}"
        lines.append(f"- Git repository: {one_line(value.repository)}, {branch}")
    else:
        lines.append("- Git repository: none")
    if value.shell is not None:
        lines.append(f"- Shell: {one_line(value.shell)}")
    return "\n".join(lines)


class Today(msgspec.Struct, frozen=True):
    """A day, as YYYY-MM-DD."""

    date: str


class DateComponent(Component[Today]):
    """Component of the day at a moment in a time zone; None for the host's. ``load`` reads the zone's file."""

    value_type = Today

    def __init__(self, now_ms: int, zone: str | None) -> None:
        super().__init__(DATE_KEY)
        self._now_ms = now_ms
        self._zone = zone

    async def load(self) -> Loaded[Today] | UnavailableComponent:
        """See ``Component``."""
        try:
            zone = None if self._zone is None else await in_thread(ZoneInfo, self._zone)
        except (OSError, ValueError, KeyError):
            return UnavailableComponent(f"this host has no time zone {self._zone!r}")
        return Loaded(Today(day_at(self._now_ms, zone)))

    def baseline(self, value: Today) -> str:
        """See ``Component``."""
        return f"Today is {_weekday(value)}."

    def update(self, previous: Today, current: Today) -> str:
        """See ``Component``."""
        return f"Today is now {_weekday(current)}."


def day_at(now_ms: int, zone: tzinfo | None) -> str:
    """The day at ``now_ms`` since 1970 in ``zone``, None for the host's."""
    moment = (
        datetime.fromtimestamp(now_ms / 1000).astimezone()
        if zone is None
        else datetime.fromtimestamp(now_ms / 1000, zone)
    )
    return moment.date().isoformat()


def _weekday(value: Today) -> str:
    return f"{date.fromisoformat(value.date):%A}, {value.date}"


class EnvironmentProvider:
    """Determines the environment and date of sessions; reads through ``files``."""

    def __init__(self, files: AgentFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock

    async def environment(self, live: LiveSession, call: WriteRequest) -> Iterable[Component[Any]]:
        """The environment of ``live``; see ``Provider``. Cancel: safe."""
        options, workdir = live.settings.component_options, live.settings.workdir
        above = directories_above(workdir)
        found = await self._files.look(live, [workdir, *(f"{each.rstrip('/')}/.git" for each in above)])
        if (place := found.get(workdir)) is not None and not place.is_directory:
            return [EnvironmentComponent(UnavailableComponent(f"the working directory {workdir} is not there"))]
        repository = nearest_repository(above, found)
        branch = None if repository is None else await self._branch(live, repository, found)
        if isinstance(branch, UnavailableComponent):
            return [EnvironmentComponent(branch)]
        account = await self._files.account(live)
        shell = options.shell or (None if account is None else account.shell)
        system = platform.system().lower()
        return [EnvironmentComponent(Loaded(Environment(system, workdir, repository, branch, shell)))]

    async def _branch(
        self, live: LiveSession, repository: str, found: Mapping[str, AgentPath]
    ) -> str | UnavailableComponent | None:
        """The branch checked out in ``repository``; None if there is no branch, or the daemon cannot see it."""
        git = f"{repository.rstrip('/')}/.git"
        if not found[git].is_directory:
            # A linked worktree or a submodule: the file names the directory.
            link = await self._files.small_text(live, git)
            if not isinstance(link, str) or not link.startswith(_LINK):
                return link if isinstance(link, UnavailableComponent) else None
            try:
                git = normalise(link.removeprefix(_LINK).strip(), repository)
            except CtxdError:
                return None
        head = await self._files.small_text(live, f"{git}/HEAD")
        if not isinstance(head, str):
            return head
        return head.removeprefix(_HEAD).strip() if head.startswith(_HEAD) else None

    async def date(self, live: LiveSession, call: WriteRequest) -> Iterable[Component[Any]]:
        """The date for ``live``; see ``Provider``. Cancel: safe."""
        return [DateComponent(self._clock.wall_ms(), live.settings.component_options.zone)]
