"""Handler of ``epoch.show``: the system context that a session's model had received."""

from ctxd.assembly.epoch_history import EpochHistory
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.rpc.caller import Caller
from ctxd.sessions.registry import Sessions
from ctxd_protocol.methods.epochs import EpochShowParams, EpochShowResult


class EpochCalls:
    """Handlers of ``epoch.*``."""

    def __init__(self, sessions: Sessions, archive: Archive) -> None:
        self._sessions = sessions
        self._epochs = EpochHistory(archive)

    async def epoch_show(self, _: Caller, params: EpochShowParams) -> EpochShowResult:
        live = await self._sessions.live(params.session)
        return await self._epochs.show(live, params)
