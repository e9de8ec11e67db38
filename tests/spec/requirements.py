"""The specification as data: what ctxd does, sentence by sentence.

Ids are never reused. ``source`` names where the behaviour comes from: a section of the context specification
(``spec``), or a decision of this project (``ctxd``). A requirement is proven by every test that carries
``@pytest.mark.requirement(id)``.
"""

from typing import NamedTuple


class Requirement(NamedTuple):
    """One numbered behaviour."""

    id: str
    sentence: str
    source: str


SECTIONS: dict[str, str] = {
    "OBJ": "Objects and hashes",
    "VER": "Versions and times",
    "FS": "Filesystems and mounts",
    "IDX": "Indexing",
    "DIS": "Discovery from tool output",
    "SES": "Sessions",
    "COL": "Auto-collapse",
    "CTX": "Context assembly",
    "BUD": "Token budget",
    "NOT": "Sharing and notices",
    "TRK": "Trackers",
    "RPC": "Protocol",
    "DUR": "Durability",
    "OPS": "Operation",
    "SVC": "As a service",
    "BOX": "Sandboxes",
    "SEC": "Secrets",
    "CLI": "Commands",
    "CLT": "Client library",
    "XTB": "Versions in an XTDB node",
    "XDB": "The XTDB node",
    "PRJ": "The projection to it",
    "HST": "Several hosts",
}

_ROWS = """
OBJ-1 | Two sessions that read the same canonical path on the same filesystem share one object; the same path on another filesystem is another object. | spec 2.4
OBJ-2 | A file's id is the SHA-256 of the canonical encoding of its type and source binding. | spec 2.4
OBJ-3 | The identity hash of an object without a source covers its type and its id, so that no two chats share one. | ctxd
OBJ-4 | The content hash covers every mutable field but the source hash and itself; fields without a value, `content` among them, are left out, as for an unread or a deleted file. | spec 2.2
OBJ-5 | The source hash is the SHA-256 of the raw bytes, also for files whose text is not kept; it is null for unread, deleted and oversized files. | spec 2.2
OBJ-6 | All hashes are taken over the JSON canonicalisation of RFC 8785. | ctxd
OBJ-7 | A file's characters are counted in code points, and its type is its lower-case extension, `text` when there is none. | spec 2.5
OBJ-8 | A tool call has one version: the same id with an equal payload changes nothing, with another payload it is refused. | spec 5.7
OBJ-9 | A tool call id that another session already uses, or that looks like another kind of id, gets an id of its own within the session. | ctxd
OBJ-10 | A deleted file's newest version has null content and is marked deleted; its path, its id and its history stay. | spec 5.9
OBJ-13 | `object.list` with type `chat` lists the chat of the session, or those of all sessions. | ctxd
OBJ-11 | Chat, system prompt and session can be read as objects, now and as of any time, but are never activated, pinned or pooled. | spec 2.1
OBJ-12 | A file is one object by every name that leads to it: symlinks, linked directories, working directories and mount prefixes are resolved, in a sandbox as it sees them. | spec 2.4
VER-1 | Every change makes a new version; earlier versions stay readable for ever. | spec 1.3
VER-2 | A version can be read as of a valid time, as of a transaction, or both. | ctxd
VER-3 | History is listed in either order, with or without versions that a later transaction corrected. | ctxd
VER-4 | Valid times never go back, even when the host's clock does, and two versions of a file, a tool call or a system prompt are at least 1 ms apart; of a chat's or a session's at one time the last one holds. | ctxd
VER-5 | Many objects are read in one call, and the call says which had no version. | ctxd
FS-1 | A path below a mount's agent prefix is the canonical path below its canonical prefix, and is shown to the agent as the agent knows it. | spec 5.3
FS-2 | Prefixes match whole path components, and the longest one wins in both directions. | spec 5.3
FS-3 | A session may have several mounts, overlapping ones and a mount at the root. | spec 5.2
FS-4 | The host's filesystem id is the SHA-256 of its machine id; a container's is its container id. | spec 5.4
FS-5 | Mount mappings are read from the output of docker inspect or from mountinfo text, and what is not a mapping is named with its reason. | ctxd
FS-6 | A path that climbs above the root, holds a NUL byte or is longer than 4,096 bytes is refused. | ctxd
FS-7 | Binary, oversized, unreadable and special files each have an outcome of their own; none blocks the daemon. | ctxd
FS-8 | A session of the host may have what no mount covers lie on the filesystem of its device, found by stat; mounts take precedence. | spec 5.3
FS-9 | A file system that does not answer is given up after five seconds, with `source_unreachable`; meanwhile no file of another mount waits for it, unless a symlink there leads to it, and then for those seconds at most; the daemon ends without it. | ctxd
IDX-1 | Indexing a new file creates its object with a first version and puts it into index, pool and active set. | spec 5.6
IDX-2 | Indexing an unchanged file answers `unchanged` and writes no version. | spec 5.6
IDX-3 | Indexing a changed file writes one new version under the same id; a file too large to be read counts as changed when its size or its time of modification did. | spec 5.6
IDX-4 | Two sessions that index the same change at once make one version. | ctxd
IDX-5 | The content may come from the caller, or the daemon reads the file. | spec 5.6
IDX-6 | Reading a missing file fails and makes no object. | ctxd
IDX-7 | A file counts as deleted only when it is missing from a directory that is there; otherwise it is orphaned and its version stands. | spec 3.6
IDX-9 | An edit that is reported of a file in the session's index, and finds the file confirmed gone, is its deletion. | ctxd
IDX-8 | Discovery makes an unread stub and never touches a version that was read. | spec 5.6
DIS-1 | `ls`, `find`, `grep`, `rg`, `git` and file-reading commands are understood, with `cd` and the call's working directory. | ctxd
DIS-2 | Only existing regular files become objects; what looked like a path and is none is named with its reason. | ctxd
DIS-3 | Directories, flags, URLs, totals, permission columns and messages never become objects. | ctxd
DIS-4 | A tool call that was recorded is returned though the files in its output could not be looked for; the failure is returned with it. | ctxd
DIS-5 | The search tools of harnesses - Grep, Glob, LS, given by name with arguments as JSON - are read as they print: names relative to the working directory wherever they search. | ctxd
SES-1 | A session is created with agent, working directory, mounts, system prompt, labels, budget and collapse window, and can be read whole. | spec 3.1
SES-2 | The index only grows. | spec 1.4
SES-3 | Active and pinned sets are always within the pool, and the pool within the index. | spec 3.1
SES-4 | Activating an indexed object promotes it to the pool first; activating an unread file reads it first. | spec 3.3
SES-5 | Activating an object whose content cannot be had fails and changes nothing: with `file_not_found` if the file is confirmed gone, with the retryable `source_unreachable` if it cannot be reached now. | ctxd
SES-6 | Deactivating an inactive object and unpinning an unpinned one are errors that say so. | ctxd
SES-7 | Removing an object from the pool takes it out of active and pinned sets; its index entry stays. | spec 3.4
SES-8 | A user message starts a turn; messages keep their order, tool results included. | spec 2.5
SES-9 | Sessions are listed newest first with a preview, filtered by state, agent, label and text. | ctxd
SES-10 | A paused session takes no writes until it is resumed; a closed one never again. Both stay readable. | spec 3.6
SES-11 | Resuming restores all sets and the chat, checks every file against its source, unread ones included, and reports which changed, were deleted or are orphaned. | spec 3.6
SES-12 | Resuming never changes which objects are in which set. | ctxd
SES-13 | No session sees or changes another's sets, chat or system prompt. | spec 3.7
SES-15 | The client's `session` with an agent returns an existing session only if it is open and fits the arguments given; otherwise it raises `Conflict`. | ctxd
SES-16 | A relative working directory is refused by the daemon; `ctx session new` resolves it against its own directory. | ctxd
SES-17 | A tool call whose id looks like one that ctxd makes can be named by that id in every call of its session. | ctxd
SES-14 | An object may be named by a unique prefix of at least 8 characters; an ambiguous one is refused. | ctxd
SES-18 | A tool call is recorded though a file that it refers to is not in the index; the reference is kept and named as unresolved. | ctxd
SES-19 | A tool call that was aborted or never answered is recorded with that status. | ctxd
SES-20 | The texts of a chat are not held in memory with their session: pages are read when they are needed, and the newest are cached within a bound. | ctxd
COL-1 | A new tool call is active; beyond the newest 5 of a turn and the newest 3 turns, tool calls are deactivated. | spec 4.3
COL-2 | Pinned objects and files are never collapsed. | spec 4.3
COL-3 | What was deactivated explicitly stays so; what was activated explicitly stays until the window has passed. | ctxd
COL-4 | Both figures are set per session. | spec 4.3
CTX-1 | The context is system prompt, metadata pool, chat and active content, in this order and in the formats laid down below. | spec 4.1
CTX-2 | Paths are shown as the agent sees them. | spec 4.1
CTX-3 | No content, name or message can forge a structural line: what was rendered can always be parsed back exactly. | ctxd
CTX-4 | Every block names its reason, its tokens and the version it shows: that of the object, of the chat for a message, of the session for the metadata pool. | ctxd
CTX-5 | Every assembly is recorded and can be rendered again byte for byte, also after a restart. | ctxd
CTX-6 | An unchanged repeat is answered with the recorded assembly and writes nothing. | ctxd
CTX-7 | The answer says how many leading bytes equal the assembly before. | ctxd
CTX-8 | An active file that changed on disk is read again before it is shown. | ctxd
CTX-9 | A deleted object keeps its place in the sets and shows a metadata line, but no content. | ctxd
CTX-11 | `context.assemble` takes an `op_id`: a resend gets the assembly that the first call recorded. | ctxd
CTX-10 | The current context's id is answered for a session, and for the only session when none is named. | ctxd
BUD-1 | When the context would exceed the session's budget, active objects are left out, oldest tool calls first, pinned ones never, and each is named with its reason. | ctxd
BUD-2 | The plan can be asked for without assembling, for any budget. | ctxd
BUD-3 | Leaving out for the budget changes no set. | ctxd
NOT-1 | A session is notified when an object it has read is changed by another; a sandbox is notified of the change, never of its author. | ctxd
NOT-2 | It is not told of its own changes, nor of objects it never read. | ctxd
NOT-3 | Notices can be read from any sequence on, also after a restart, and a subscription loses and repeats none. | ctxd
NOT-4 | The sessions that know an object can be listed. | ctxd
TRK-1 | A file that a session has read is followed: what becomes of it on disk is a new version, and a notice to every session that read it, though nobody asks. | spec 5.8
TRK-2 | A directory takes one watch of the system, however many files and sessions it is for; taking up a file or giving one up touches no other. | spec 5.8
TRK-3 | Many changes of one file in a short time make few versions, and always one of the last. | ctxd
TRK-4 | A watch that is lost or cannot be had - a limit, an overflow, a directory that vanished, an unmount - is told with its reason, looking at intervals takes its place where it can, and it is had again once that is possible; no rendered context depends on one. | ctxd
TRK-5 | A tracked file is attached, orphaned or resumed, and `tracker.list` tells which, since when and why. | spec 5.9
TRK-6 | Files are followed for a session while it is in use: not while it is paused or closed, and after a restart from its next use on, when what changed meanwhile is found. | spec 5.9
TRK-7 | Only what the daemon can look at itself is followed; nothing that a symlink leads to out of a sandbox's mounts is watched. | spec 5.8
TRK-8 | A session that is at work when a file it follows changes is given a moment to report the change as its own; one that a tracker stores has no author until the first session that reports the edit, however much later: its readers are told again, with the author, who is not told of it in what it reads from then on. | ctxd
TRK-9 | Where a file system does not answer, its trackers say so within seconds, once in the log, and it is left alone until it does; then they are attached again. All other files go on being followed meanwhile, and the daemon ends. | ctxd
TRK-10 | What changes without a word - files of the kernel, of other hosts, of programs - is looked at, and says so. | ctxd
RPC-1 | One JSON-RPC 2.0 message a line; `hello` is optional. | ctxd
RPC-2 | Malformed input gets the standard's error and never harms another client. | ctxd
RPC-3 | A method that a connection may not call does not exist for it. | ctxd
RPC-4 | Every write with an `op_id` that changes something is applied once; a resend gets the first answer, and other parameters are refused. A call that changed nothing leaves nothing behind and is decided anew. | ctxd
RPC-5 | A request can be cancelled, and ends by itself at its deadline. | ctxd
RPC-6 | `rpc.discover` answers the checked-in OpenRPC document, and a breaking change fails a test. | ctxd
RPC-7 | The calls of one session take effect in the order they arrive. | ctxd
RPC-8 | Frames, depth, batches and requests in flight are bounded, and the bounds are announced. | ctxd
RPC-9 | Connections take turns, one slice each, bounded in lines and in time, whatever the lines hold: blank lines, stray responses and malformed lines cost as much as calls. While several connections write, each has a window of undecided writes. A flood at most doubles the time that others wait: the figures are `isolation` and `flood` of `python -m bench`. | ctxd
RPC-10 | Parameters are closed: an unknown member is refused at every level, and so are a user message without content and a number that is not finite. | ctxd
RPC-11 | Answers that are being made or that a client does not read are bounded in bytes for a connection, a sandbox and the daemon: a call that would pass the bound waits, an answer too long for a sandbox is refused as `too_large`. Whatever one sandbox does, the daemon stays within 256 MB above idle: the figure is `memory`. | ctxd
DUR-1 | An acknowledged write survives a kill at any moment; none is applied twice. | ctxd
DUR-2 | Every acknowledged write carries a receipt: its sequence, the chain hash there and its valid time. | ctxd
DUR-3 | A full disk makes the daemon read-only with a clear error; reads go on, and writes resume by themselves. | ctxd
DUR-4 | After a failed flush nothing more is acknowledged and the daemon exits with 74. | ctxd
DUR-5 | A second daemon on the same state directory is refused, naming the holder. | ctxd
DUR-6 | `ctxd verify` recomputes every hash and the chain and finds every change of a byte that matters. | ctxd
DUR-7 | A backup can be made while the daemon runs; a restored one answers the same. | ctxd
DUR-8 | A journal that is behind what a client was acknowledged is noticed and made read-only. | ctxd
DUR-9 | Once the state directory is removed or replaced, the next write is refused as `data_loss`, and the error says where what was acknowledged before can still be found. | ctxd
DUR-12 | A scrub beside the work reads the whole store again and again at a bounded rate, goes on where the daemon was stopped, and reports damage that no read has met in `daemon.status`. | ctxd
DUR-11 | A state directory of an older schema is migrated at the start or by `ctxd migrate`, whose `--dry-run` names the steps: its database is copied first, and a migration that is cut resumes. A newer one is refused. One that the first version wrote opens with everything in it. | ctxd
DUR-10 | Loss or damage of the head witness and of `secrets.key`, and of the indexes that reads rest on, is reported in `daemon.status` and by `ctxd verify`; a read that finds nothing where an index names something answers `corrupt`. | ctxd
OPS-1 | The socket is never reachable with wider rights than asked for; a stale one is replaced, a live one refused. | ctxd
OPS-2 | On SIGTERM the daemon answers what it has begun, refuses what is new, and exits with 0. | ctxd
OPS-3 | `daemon.status` tells health, queue and figures. | ctxd
SVC-14 | `ctxd service install` and `make install DESTDIR=` install units, completions and man pages, upgrade them, and remove exactly them. | ctxd
SVC-1 | Under a service manager the daemon says that it is ready once the journal is recovered and it answers, says that it stops, and listens on the socket it is handed, which it leaves where it is. | ctxd
SVC-2 | The sockets of sandboxes are kept by the service manager: who connects to one while no daemon runs, or to the host's, is served by the next one. | ctxd
SVC-3 | A sign of life is given only when the loop turns and the store's thread has brought something to its end; a daemon that is frozen or whose disk hangs gives none. | ctxd
SVC-4 | On SIGHUP the settings are read again: what can change in a running daemon does, what cannot is named, and settings that cannot be used change nothing. | ctxd
SVC-5 | What goes to the journal of systemd is one JSON object a line with its severity in front. | ctxd
SVC-6 | The units are understood by systemd without a complaint, and its analysis finds an exposure of 0.8 at most, 1.5 with an XTDB node. | ctxd
SVC-7 | Over restarts under load, by SIGTERM or SIGKILL, no acknowledged write is lost or doubled, and clients that resend stand still for a moment: the figure is `python -m bench restart`. | ctxd
SVC-8 | With `metrics.socket` the daemon tells its figures to Prometheus on a socket of its own: numbers by method, outcome and state, of which no count falls while it runs, and nothing that a client chose. | ctxd
SVC-9 | No log holds what a client said or a file holds, whatever goes wrong over it: an error is told by its kind and its place. | ctxd
BOX-1 | A registered sandbox has a directory with a socket and `current.json`; after a restart of the daemon, by SIGKILL too, it is at the same path with the same rights. | ctxd
BOX-2 | On a sandbox's socket what was not granted does not exist, and registering sandboxes never does. | ctxd
BOX-3 | A session that is not the sandbox's is answered by every method as one that does not exist. | ctxd
BOX-4 | A sandbox lasts as long as its harness's connection and a grace, or for its time; then its socket, its connections and its directory are gone, and its sessions stay; a release that cannot be written leaves all of it as it was. | ctxd
BOX-5 | Beyond its quota a sandbox is refused as `quota_exceeded`, with the time to wait; others are not. | ctxd
BOX-6 | The current context is one answer: to a call, in the file, in CBOR and of `ctx current`. | spec 3
BOX-7 | No path, symlink or rename leads the daemon out of a sandbox's mounts, nor onto a file system mounted below one, and a link means what it means in the sandbox; a file that the mounts no longer show is not read, whatever the session indexed before. | ctxd
BOX-8 | What a sandbox says that a shared file holds is an object of its own session, unless the daemon reads the same. | ctxd
BOX-9 | No answer to a sandbox names a path of the host or another session. Of a shared file it shows versions from the sandbox's first sight on, captured under rights that the sandbox has; no outcome or history depends on what other sessions know. | ctxd
BOX-10 | A sandbox's socket and file are for the daemon's user and for the one who registers it, or whom that one names, whether the daemon is root or not; for no other. | ctxd
BOX-11 | What the user inside a sandbox may not read is not read below its mounts while it is registered, nor told to be there: hard links, swapped names and directories on the way included. | ctxd
BOX-12 | An empty parameter is refused or means empty, never absent; ids of filesystems, sessions and principals hold no control, direction or blank characters. | ctxd
BOX-13 | A daemon that runs as root refuses to start with a group on its socket, whose members would read every file, unless `socket_group_as_root` is set. | ctxd
BOX-14 | Sandboxes' sockets and connections leave file descriptors to the host and to the store: beyond that, one is refused as `rate_limited`. A disk that fails while a sandbox's socket is removed ends nothing. | ctxd
SEC-1 | What a session captures, its files, tool calls with their arguments, messages, prompt and labels, passes its policy: `off`, `flag` or `redact`; redacted, a secret is `[REDACTED:rule:tag]`, equal ones alike, and no byte of it is kept; what a sandbox records or may have written to a file has tags of its own, so that guessing finds no secret. | ctxd
SEC-2 | Flagged, text and context are as they came; listings and metadata name the rules and tags of what was found, never the secret. | ctxd
SEC-3 | A redacted file's source hash is keyed, so that it cannot be guessed; indexing it unchanged costs one hash and writes nothing. | ctxd
SEC-4 | What was captured under one policy is not captured under a laxer one by anybody else; a session that redacts reads again what was not. | ctxd
SEC-5 | Rules are RE2, scanned in time linear in the text; a file of rules that cannot be used keeps the daemon from starting and is told with rule and reason. | ctxd
SEC-6 | No line of the log holds a secret that a rule knows. | ctxd
SEC-7 | `ctx scan` looks through files, standard input, a session or the store, chats, metadata and earlier versions with it, ends with 8 if it finds something, and never shows it. | ctxd
SEC-8 | `object.purge` destroys what an object says in every version, wherever equal text is kept too: no file of the state directory holds it, and `ctxd verify --absent` searches them all; the chain stays verifiable, and reads answer `purged`. A purge takes as long in a large store as in a small one. | ctxd
SEC-9 | A purge that is killed at any step is whole or not begun, and the next start ends it. | ctxd
SEC-10 | What was said in a chat, or in some of its turns, is purged with the same proof: turns, roles and tool calls stay, messages say `[purged]`, the session goes on, and no listing, bundle or earlier assembly shows it. | ctxd
SEC-11 | `session.export` and `ctx session export` give a session's prompt, turns, tool calls and files' metadata in order, page by page; every secret that a rule knows is replaced, whatever the policy. | ctxd
CLI-1 | Every `ctx` command takes `--json`, and ends with a documented exit code. | ctxd
CLI-2 | Errors are one line with cause, place and remedy, on standard error. | ctxd
CLI-3 | `ctx context` shows what the model sees by path and command, why, and what it costs, and compares two turns. | ctxd
CLI-6 | `ctx current` prints the id of the current context, or ends with 3 and prints nothing, within 200 ms whatever the daemon does. | spec 3
CLI-7 | `ctx install git` adds a `Context-Id` trailer to commits made in a context; hooks that are there run as before, and come back when it goes. | ctxd
CLI-8 | `ctx top` shows calls, writes, queues, followed files and the busiest sandboxes as they are, once or again and again. | ctxd
CLI-10 | Without a session named, a command takes `$CTXD_SESSION`, the only open session, or the one whose working directory contains the current directory. | ctxd
CLI-11 | Times are written as people write them: `now`, `yesterday 13:44`, `2 hours ago`, a date, or milliseconds since 1970. | ctxd
CLI-12 | The shell completes ids and paths from the daemon; a daemon that does not answer within 200 ms delays nothing. | ctxd
CLI-13 | `ctx transcript` reads files of Claude Code, codex, pi and opencode, and their headless output, as typed events; every record becomes at least one, and the file is not changed. | ctxd
CLI-9 | `ctx doctor` looks at the running daemon's limits, at what it follows, at the sockets and mounts of its sandboxes, and starts a real sandbox to see that one is answered inside. | ctxd
CLT-1 | The client runs on asyncio, on uvloop and on trio, and has a synchronous twin with the same methods. | ctxd
CLT-2 | The client reconnects and resends what is safe to resend, with the same `op_id`. | ctxd
CLT-3 | Importing the client needs nothing but anyio, msgspec and the protocol package. | ctxd
CLT-4 | A value that the daemon cannot take (nested deeper than 64 levels, a number that is not finite) is refused before it is sent, and an error without an id fails the calls it may be about. | ctxd
CLT-5 | A harness is type-checked strictly against the installed client, by mypy and by pyright: no result is `Any`. | ctxd
CLT-6 | Every method of client and handle has its signature, its errors and an example that runs. | ctxd
XTB-1 | Reads as of any time and histories are the same from an XTDB node as from the embedded tables, corrections and deletions too, on both time axes. | ctxd
XTB-2 | A version comes back from an XTDB node byte for byte; names chosen by clients never become keys that XTDB indexes. | ctxd
XTB-3 | After a failure, a transaction is known not to be applied or its outcome is unknown, and never guessed; a response that is not exactly what was requested counts as none. | ctxd
XTB-4 | Every request to an XTDB node is bounded in time; after repeated failures a circuit breaker pauses requests, for up to a minute, and then tries one. | ctxd
XTB-5 | Other servers of XTDB's HTTP protocol serve as well: reads, histories and a daemon's versions are the same there. | ctxd
XTB-6 | Ids at a node are read in pages, so that no request grows with the node; a comparison counts only what its own journal wrote there. | ctxd
XTB-7 | Every document at a node shows its true type and hashes at the top level, whatever numbers or hash bytes it holds. | ctxd
XTB-8 | Queries look up documents at a node by index: by writer, session, tool, turn and path. | ctxd
XTB-9 | A server that refuses requests for long ids is reported with the setting that makes it take them. | ctxd
XTB-10 | With an XTDB node, Datalog queries over all documents are answered as of a valid time and a transaction, bounded in time and rows; the embedded store refuses them with a remedy. | ctxd
XDB-1 | The node that ctxd brings serves XTDB's HTTP protocol on a Unix socket as far as ctxd uses it, and distinguishes a missing entity from a missing operation. | ctxd
XDB-2 | Every wait and every query of the node is bounded, and every failure names its class, its message and the operation; bad requests are reported as such. | ctxd
XDB-3 | Nothing sent to the node is run as code. | ctxd
XDB-4 | The node's socket is its owner's only; a stale one is replaced, a live one and anything else in its place is refused. | ctxd
XDB-5 | Data taken by the node survives its kill, and its index is rebuilt from log and documents. | ctxd
XDB-6 | Two nodes on one PostgreSQL see each other's writes. | ctxd
XDB-7 | `ctxd xtdb install` takes only the jars that it was made with, resumes after an interruption, and names a remedy when something is missing. | ctxd
XDB-8 | `ctxd xtdb check` reports Java, installation, socket, version, ingester, flushing and lag of a node, each with a remedy; `ctxd doctor` does so where the store uses a node. | ctxd
PRJ-1 | Every row of the journal reaches the XTDB node once and in order, over kills of either at any moment. | ctxd
PRJ-2 | A node that is slow, paused, failed or away for hours delays and fails no write while the backlog has room, and then gets the backlog. | ctxd
PRJ-3 | A node that lost its data, or went back to an older copy, is noticed and gets the missing rows; one that holds rows that the journal lacks is left alone, with a reason and a remedy. | ctxd
PRJ-4 | A row that the node refuses is found, quarantined alone, and reported; `ctxd requeue` projects it once the node takes it. | ctxd
PRJ-5 | `ctxd migrate` moves from either store to the other without loss; after an interruption it resumes, or the state is as before. | ctxd
PRJ-6 | `ctxd verify --store` compares journal, embedded versions and node, version by version and text by text; `ctxd rebuild-xtdb` fills an empty node and compares. | ctxd
PRJ-7 | On an XTDB node the daemon does all that this specification says; as-of reads are answered by the node where its cursor covers them and by the embedded versions otherwise, with the same result. | ctxd
PRJ-8 | From half of the backlog limit on, its level is reported; from four fifths on, writes pass as fast as rows drain; at the limit they are refused, not applied, with a time for the retry. | ctxd
PRJ-9 | The store is `sqlite` or `xtdb`, given alone or in a table with its address, in a file, the environment or a flag. | ctxd
PRJ-10 | A purge evicts from the node all versions and texts, and nothing that still holds them there is shown meanwhile; a text that another object holds stays, and the rest of a restated one returns, wherever the purge is interrupted; the same holds at a node that is attached later, or rebuilds its index. | ctxd
PRJ-11 | Rows that change one entity again and again are projected many to a transaction. | ctxd
HST-1 | A session that was paused on one of several hosts is resumed on another with the same sets, chat and settings, and each of its recorded assemblies has the same bytes there; so it is when it comes back, and after a break at any point of it. | ctxd
HST-2 | A session has one owner among the hosts; one whose owner is alive is refused elsewhere as `session_owned_elsewhere`, which names the host, and is listed on request, as are the hosts with their sessions, lag and lease. | ctxd
HST-3 | A session of a host that was silent for its lease can be taken over; whether it was is judged by the observer's own monotonic clock alone, and by what is in the log when it is claimed. | ctxd
HST-4 | What a host writes to a session that it lost does not reach it, and is kept whole as a session of its own, which the refusal names, also if the session is back before that is known; nothing acknowledged is lost. | ctxd
HST-5 | Clocks of hosts that are minutes apart change nothing that is read, shown or owned. | ctxd
HST-6 | Equal ids of tool calls, and of sessions, of two hosts are told apart, and a text shows what it showed before. | ctxd
HST-7 | Equal text is kept once for all hosts. | ctxd
HST-8 | A pause returns once all of the session is in the log and another host may resume it, or fails as `session_not_released` and says how many rows are missing; `wait` false returns once it is durable here. With the node down a resume of what was given up is refused as `store_unavailable`, to be tried again, and everything else goes on. | ctxd
HST-9 | What a host purged keeps no session from going on elsewhere, claimed before or after, its own or another's with the same text: there it is purged too, and the rest is whole. | ctxd
HST-10 | What was said in a chat is purged where its session is: on another host the call is refused with `session_owned_elsewhere`, and a purge that a takeover overtakes erases nothing of the session there. | ctxd
HST-11 | An import or a branch writes rows in proportion to what the journal lacks of the session, also when it is begun again, and nothing is copied once the hosts are level. | ctxd
HST-12 | A host that projects, or has no active session, renews no lease; the documents of renewals repeat. | ctxd
"""

REQUIREMENTS: tuple[Requirement, ...] = tuple(
    Requirement(*(part.strip() for part in row.split(" | "))) for row in _ROWS.strip().splitlines()
)
"""Every numbered behaviour, in the order of SSOT.md."""
