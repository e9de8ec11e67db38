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
    "LST": "Projects and the list of sessions",
    "COL": "Auto-collapse",
    "CTX": "Context assembly",
    "REQ": "Requests for providers",
    "EPO": "Context epochs",
    "WIN": "Repacks of the window",
    "USE": "Usage and its price",
    "CMT": "Context commits",
    "WHY": "Explanations",
    "BUD": "Token budget",
    "NOT": "Sharing and notices",
    "TRK": "Trackers",
    "RPC": "Protocol",
    "DUR": "Durability",
    "ART": "Artifacts",
    "OPS": "Operation",
    "SVC": "As a service",
    "BOX": "Sandboxes",
    "SEC": "Secrets",
    "CLI": "Commands",
    "SRC": "Search",
    "REV": "Revisions",
    "CLT": "Client library",
    "MCP": "Model Context Protocol",
    "HND": "Hand-over to a harness",
    "FMT": "Delta formats",
    "IMP": "Import of transcripts",
    "CAP": "Capture",
    "ADP": "Adapters",
    "HOK": "Hooks of harnesses",
    "XTB": "Versions in an XTDB node",
    "XDB": "The XTDB node",
    "PRJ": "The projection to it",
    "HST": "Several hosts",
}

_ROWS = """
OBJ-1 | Two sessions that read the same canonical path on the same filesystem share one object; the same path on another filesystem is another object. | spec 2.4
OBJ-2 | A file's id is the SHA-256 of the canonical encoding of its type and source binding. | spec 2.4
OBJ-3 | The identity hash of an object without a source covers its type and id, so that no two chats have the same hash. | ctxd
OBJ-4 | The content hash covers every mutable field except the source hash and itself; absent fields are omitted, including `content` of an unread or deleted file. | spec 2.2
OBJ-5 | The source hash is the SHA-256 of the raw bytes, also for files whose text is not stored; it is null for unread, deleted and oversized files. | spec 2.2
OBJ-6 | All hashes are computed over the JSON canonicalisation of RFC 8785. | ctxd
OBJ-7 | A file's characters are counted in code points; its type is its lower-case extension, or `text` if it has none. | spec 2.5
OBJ-8 | A tool call has one version: recording the same id with an equal payload changes nothing; with a different payload it is refused. | spec 5.7
OBJ-9 | A tool call id that another session already uses, or that looks like another kind of id, is renamed within the session. | ctxd
OBJ-10 | A deleted file's newest version has null content and is marked deleted; its path, id and history remain. | spec 5.9
OBJ-13 | `object.list` with type `chat` lists the chat of the session, or the chats of all sessions. | ctxd
OBJ-11 | Chat, system prompt and session can be read as objects, now and as of any time, but are never activated, pinned or pooled. | spec 2.1
OBJ-12 | A file is one object under every name that leads to it: symlinks, linked directories, working directories and mount prefixes are resolved, in a sandbox as the sandbox sees them. | spec 2.4
VER-1 | Every change creates a new version; earlier versions stay readable forever. | spec 1.3
VER-2 | A version can be read as of a valid time, as of a transaction, or both. | ctxd
VER-3 | History can be listed in either order, with or without versions that a later transaction corrected. Its rows have content hashes, except those of chats and sessions, whose hash is read with the version. | ctxd
VER-4 | Valid times never go back, even if the host's clock does. Two versions of a file, tool call or system prompt are at least 1 ms apart; of several versions of a chat or session at one time, the last one holds. | ctxd
VER-5 | Many objects can be read in one call, which reports the ids that had no version. | ctxd
VER-6 | A connection on the host may give a past valid time for the objects that it records. An object's newest version is the one with the newest valid time, whichever was written last; a version written at the valid time of another one corrects it. A time that is not past is refused, and so is any time from a sandbox. | ctxd
FS-1 | A path below a mount's agent prefix maps to the canonical path below its canonical prefix, and the agent is shown its own path. | spec 5.3
FS-2 | Prefixes match whole path components, and the longest one wins in both directions. | spec 5.3
FS-3 | A session may have several mounts, overlapping ones and a mount at the root. | spec 5.2
FS-4 | The host's filesystem id is the SHA-256 of its machine id; a container's is its container id. | spec 5.4
FS-5 | Mount mappings are read from the output of docker inspect or from mountinfo text; entries that are not mappings are reported with the reason. | ctxd
FS-6 | A path that climbs above the root, contains a NUL byte or is longer than 4,096 bytes is refused. | ctxd
FS-7 | Binary, oversized, unreadable and special files each have their own outcome; none blocks the daemon. | ctxd
FS-8 | A session of the host can assign paths that no mount covers to the filesystem of their device, as found by stat; mounts take precedence. | spec 5.3
FS-9 | A lookup on a file system that does not respond is abandoned after five seconds with `source_unreachable`. Meanwhile files on other mounts are not delayed, except through a symlink that leads to that file system, and then by at most five seconds; the daemon can still shut down. | ctxd
FS-10 | Binary files, including images, are kept in every version up to the same size as text, with `media_type`, `size_bytes` and `encoding: base64` in the payload; the context shows a line that names them. | ctxd
FS-11 | Binary content is not searched for secrets. Under the policy `redact`, and in an export, only images are kept; of other binary files only the hash is kept, and of other attachments of events only the name and type. | ctxd
IDX-1 | Indexing a new file creates its object with a first version and adds it to index, pool and active set. | spec 5.6
IDX-2 | Indexing an unchanged file returns `unchanged` and writes no version. | spec 5.6
IDX-3 | Indexing a changed file writes one new version under the same id; a file too large to read counts as changed when its size or modification time changed. | spec 5.6
IDX-4 | Two sessions that index the same change concurrently create one version. | ctxd
IDX-5 | The caller can supply the content; otherwise the daemon reads the file. | spec 5.6
IDX-6 | Reading a missing file fails and creates no object. | ctxd
IDX-7 | A file counts as deleted only if it is missing from an existing directory; otherwise it is orphaned and its newest version stays valid. | spec 3.6
IDX-10 | Files in the state and cache directories of the daemon, and those of its own process, such as `/proc/self/environ`, are not read, by whatever path: the call ends with `unsupported`. | ctxd
IDX-9 | An edit reported for a file in the session's index that is confirmed gone is recorded as its deletion. | ctxd
IDX-8 | Discovery creates an unread stub and never changes a version that was read. | spec 5.6
DIS-1 | `ls`, `find`, `grep`, `rg`, `git` and file-reading commands are parsed, including `cd` and the call's working directory. | ctxd
DIS-2 | Only existing regular files become objects; other path candidates are reported with the reason. | ctxd
DIS-3 | Directories, flags, URLs, totals, permission columns and messages never become objects. | ctxd
DIS-4 | The client's `tool()` records and returns a tool call even if the search for files in its output fails; the failure is part of the result. | ctxd
DIS-5 | The search tools of harnesses (Grep, Glob, LS, given by name with arguments as JSON) are parsed in their own output formats: names are relative to the working directory, whichever directory the tool searches. | ctxd
SES-1 | A session is created with agent, working directory, mounts, system prompt, labels, budget and collapse window, and can be read in full. Its id is neither `HEAD` nor has the form of a commit id. | spec 3.1
SES-2 | The index only grows. | spec 1.4
SES-3 | The active and pinned sets are always subsets of the pool, and the pool is a subset of the index. | spec 3.1
SES-4 | Activating an indexed object promotes it to the pool first; activating an unread file reads it first. | spec 3.3
SES-5 | Activating an object whose content is unavailable fails and changes nothing: with `file_not_found` if the file is confirmed gone, with the retryable `source_unreachable` if it is unreachable. | ctxd
SES-6 | Deactivating an inactive object and unpinning an unpinned one are errors. A pinned object can be deactivated, and stays pinned; `ctx deactivate` notes that. | ctxd
SES-7 | Removing an object from the pool also removes it from the active and pinned sets; its index entry remains. | spec 3.4
SES-8 | A user message starts a turn; messages, including tool results, keep their order. | spec 2.5
SES-9 | Sessions are listed newest first with a preview, filtered by state, agent, label and text. | ctxd
SES-10 | A paused session refuses writes until it is resumed; a closed one refuses them forever. Both stay readable. Commits of clients, their tags and their summaries are not part of a session's chat or sets and are accepted in either state: an import keeps its sessions paused, and `ctx capture` delivers what an agent wrote until it ended. | spec 3.6
SES-11 | Resuming restores all sets and the chat, checks every file against its source, including unread ones, and reports those that changed, were deleted or are orphaned. | spec 3.6
SES-12 | Resuming never changes the membership of any set. | ctxd
SES-13 | No session sees or changes another's sets, chat or system prompt. | spec 3.7
SES-15 | The client's `session` with an agent returns an existing session only if it is open and matches the given arguments; otherwise it raises `Conflict`. | ctxd
SES-16 | A relative working directory is refused by the daemon; `ctx session new` resolves it against the current directory, which is the default, and uses the agent's path for the result. | ctxd
SES-17 | A tool call whose id looks like a ctxd-generated one can be referred to by that id in every call of its session, unless a file of the session has that very id; its message in the chat always can. | ctxd
SES-14 | An object can be referred to by a unique prefix of at least 8 characters; an ambiguous prefix is refused. | ctxd
SES-18 | A tool call is recorded even if it refers to a file outside the index; the reference is kept and reported as unresolved. | ctxd
SES-19 | A tool call that was aborted or has no result is recorded with that status. | ctxd
SES-20 | The texts of a chat are not held in memory with their session: pages are read on demand, and the newest are cached within a limit. | ctxd
SES-21 | The chat is a log of typed events: `session.append` takes prompts, responses, thinking with its signature, tool calls, tool results, system notices, compactions and opaque entries, and `session.events` returns them page by page with every field. `session.chat` and the context as text show the prompts, the responses and the results of recorded tool calls (but see CTX-12 and CTX-13). | ctxd
SES-22 | `ctx session import FILE` stores a transcript of Claude Code, codex, pi or opencode as a session whose log holds every event of the file, in order. A file with an event beyond the limit of a call leaves no session. An interrupted import names its session and the number of events in it. | ctxd
SES-23 | `session.remove` moves a session to the trash: it is listed only on request, stays readable, and refuses writes with `session_removed`, which names the remedy. The session records who removed it, when and through which connection. | ctxd
SES-24 | `session.restore` brings a session back from the trash in the state that it had, with its sets and its chat. | ctxd
SES-25 | `session.gc` and `ctxd gc --keep 90d` erase sessions that were moved to the trash over 90 days ago, move sessions idle for over 90 days to the trash, and report the bytes and the title of each; a dry run changes nothing. The text lists at most 20 sessions for each action. Objects that others reach are kept: files, artifacts, tool calls and texts that other sessions have, sessions in use, and commits, except commits that the daemon itself made of the session and that neither a tag nor another commit reaches. | ctxd
SES-26 | An age counts only as far as the journal confirms it: a period without any write counts for at most a third of the `--keep` period, so that a clock that jumps forward by years erases nothing unless `--force` is given. | ctxd
SES-27 | A kill while a session is being erased leaves it either whole in the trash or erased; the next collection continues. | ctxd
SES-28 | `session.fork` starts a session with the sets, chat, system prompt and entries that another session had at a commit, a journal sequence or a time. It copies nothing: the size of its write does not depend on the length of the session; commits of clients that were never in the chat are in the chain of the fork, and not in its chat (SES-41). Two branches never see each other; a purge reaches all branches that share a text. | spec3 Branching and Forking
SES-29 | A fork continues the requests and the context epoch of its parent: its next request begins with the bytes of the parent's request at that moment, repeats the system prompt only if it changed, and uses the parent's prompt cache. The fork can show the parent's earlier requests byte for byte. | ctxd
SES-30 | The daemon commits a session with the checkpoint policy `turn`, `tool` or `compaction` at the end of each turn, soon after tool calls, or at each compaction, and in all cases at a pause and at the end of the session. Each commit names its trigger: `turn_boundary`, `tool_call` (also for the current context), `compaction`, `explicit` at a pause, and `session_end`. The chain has each event once, also across crashes and restarts, and the write that ends a turn does not wait for the commit. A fork continues the chain of its parent; at a turn or another past moment, the newest commit without a later event. | ctxd
SES-40 | Fresh start, resumption and fork are one operation: `session.create` with a template and a context, which is empty, a moment of a session, a commit, or the newest commit of a principal. The new session has the sets, the chat and the settings of that moment, except for settings that are given, and its chain of commits continues from there. A list of sessions names its origin, and `ctx fork`, `ctx session fork` and `ctx resume` note the command that makes it the default session. | spec3 Instantiation
SES-41 | A commit that belongs to no session on this host, or to a session without a chat of its own (captured, imported), is a context as well: the new session begins with the commit's materialised conversation, from the nearest compaction on, of 64 MiB at most, with the settings of its session and without its sets. The same holds for a commit of a client that continues the chat of its session, and for a moment of a session whose newest commit is one: they were never in the chat. If events of the chat were not committed before, the chat stands for the commit. A purged commit is refused. | spec3 Instantiation
SES-42 | After a crash the newest work of a principal is found: the acknowledged events of its newest session are committed, and `ctx resume` starts a session that continues from there. Commits of sessions in the trash, and commits in formats that cannot be read, are skipped. | spec3 Fresh Start vs. Resume vs. Fork
SES-43 | `ctx session new --context`, `ctx fork` and `ctx resume` start a session from a commit by any of its names, from a moment such as `s1@12`, or from a principal. | ctxd
SES-44 | A sandbox sees the chain from which its session continues, as it was at that time: for a fork, back to the root; for a session that began with a commit, back to the nearest compaction. It can continue and materialise these commits, and can change none of them; other branches of the same session stay hidden. | ctxd
SES-45 | If `session.create` requests the state `paused` or an archived session, the write that creates the session also sets this, whatever context the session begins with. A session that continues another one is active and listed unless the call asks otherwise. | ctxd
SES-46 | A session that continues the session of a harness does not have the labels that identify that, its recorded times or its grants; hooks, imports and `ctx mcp` use the harness's own session. | ctxd
LST-1 | A session has the project of its working directory: the root commits and the remotes of its git repository, and its path below the working tree; without a repository, the directory. The project is determined when the session is created, in any way, and when its working directory is changed. | ctxd
LST-2 | The https, ssh and scp addresses of a remote count as equal: credentials, `.git`, the default port and the case of the host are ignored. Linked working trees and clones have one project; forks share the root commit and differ by remote. A shallow clone has no root commits; replacements and grafts do not change the root commits. | ctxd
LST-3 | While a project is determined, nothing in its repository is executed, whatever its configuration, and nothing is loaded from elsewhere. A repository that takes too long, or cannot be read, counts as a directory. | ctxd
LST-4 | Replies to a sandbox do not contain the project of its session, and the repository of a sandbox is never followed to a place outside the sandbox. | ctxd
LST-5 | A project is the same in all its clones and after any move: clones have a common remote, or a common root commit and no contradicting remotes. Sessions from before the directory was a repository, had a remote, or changed its remote belong to the project as well. Sessions of forks are counted separately. | ctxd
LST-6 | Sessions can be filtered by harness, project, package of a project, agent, time, label, file, state and text; all given filters must match. A project is given by a path, which need not exist, by a name, by the address of a remote or the end of one, or by a root commit. A page reads only as many sessions as the narrowest filter matches, however many sessions exist. The filter by file matches sessions that have read, changed or listed the file, or that have a tool call which names it, as an absolute path or relative to the working directory. | ctxd
LST-7 | Archived sessions are left out of lists, whatever their state, and are not changed; a resume lists the session again. | ctxd
LST-8 | A list reports the number of sessions that match its filters but are left out because they are archived, in the trash, or of forks, and the number of sessions without filters. | ctxd
LST-9 | The title of a session is the given one, else the title that the harness recorded, else the first line of the first prompt. Secrets in it are treated like those in labels. A purge of messages also purges a title that quotes one of them. A purge of an imported commit also purges the harness's title and first prompt, and no later import restores them. | ctxd
LST-10 | `session.annotate` sets title, labels, the archive flag, and the directory of a project that was moved, whatever the state of the session; `ctx session moved OLD NEW` sets the directory of all sessions of a directory. `ctx session title TITLE` and `ctx session label KEY=VALUE` change the default session. | ctxd
LST-11 | An import keeps the harness's own title, the first prompt, the times of the first and the last event (sub-agents included), and the recorded grants (permission modes, approval and sandbox policies, permission rules), in whatever order the transcripts of a session are read. A working directory on a Windows drive, such as `C:\\app`, becomes its place in WSL, `/mnt/c/app`. A session of which no record has a time gets the time of the last change of its transcript. A session that Claude Code moved to other directories belongs to the project of the last one; a move that a later import finds sets the project, once. A title that Claude Code keeps beside the transcript counts, unless that in the transcript is known to be newer. A summary in a Claude Code file becomes the title only of the session with the summarised message. Hooks record the reported permission mode. `ctx session show` shows the grants; ctxd never applies them. For a session whose conversation is in its commits, lists show no number of turns, and `ctx session show` names the command that lists the commits. | ctxd
LST-12 | `ctx resume` without a principal continues the caller's most recently used session of this project that has a commit, except archived sessions and those in the trash, and prints its name; if there is no such session, the command is refused and names the principal whose newest work it can continue instead. | ctxd
LST-13 | On a terminal, `ctx session ls` shows no column of zeros. On one that is too narrow, it shows the shortest prefix of each id that names the session in every command, and leaves out columns, but never the id, the time of the last event and the title. | ctxd
COL-1 | A new tool call is active; tool calls beyond the newest 5 of a turn and the newest 3 turns are deactivated. | spec 4.3
COL-2 | Pinned objects and files are never collapsed. | spec 4.3
COL-3 | An explicit deactivation persists; an explicit activation persists until the collapse window has passed. | ctxd
COL-4 | Both limits of the collapse window, tool calls per turn and turns, can be set per session. | spec 4.3
CTX-1 | The context consists of system prompt, metadata pool, chat and active content, in this order and in the formats specified above. | spec 4.1
CTX-2 | Paths are shown as the agent sees them. | spec 4.1
CTX-3 | No content, name or message can forge a structural line: rendered text can always be parsed back exactly. | ctxd
CTX-4 | Every block states its reason, its tokens and the version it shows: of the object, of the chat for a message, of the session for the metadata pool. | ctxd
CTX-5 | Every assembly is recorded and can be rendered again byte for byte, also after a restart. | ctxd
CTX-6 | An unchanged repeat returns the recorded assembly and writes nothing, also if it exceeds the budget. | ctxd
CTX-7 | The result states how many leading bytes equal the previous assembly. | ctxd
CTX-8 | An active file that changed on disk is read again before it is shown. | ctxd
CTX-9 | A deleted object keeps its place in the sets and is shown as a metadata line without content. So is a file that is too large, or binary and not kept; its line has a mark, a request's update also the size, and `context.why` the reason. | ctxd
CTX-11 | `context.assemble` accepts an `op_id`: a resend returns the assembly that the first call recorded, or, until the daemon restarts, the existing assembly that the first call found unchanged. | ctxd
CTX-12 | In the text, the summary of a compaction takes the place of the messages before it, as in a request; the messages that it keeps follow it. A context that was recorded by an earlier version is shown as it was recorded. | ctxd
CTX-13 | A tool call that only the chat has, as in a session that begins with an imported commit, is a message of the text once it has an output: its tool, its arguments and its output, which are cut if they are long. A budget leaves out these messages first, the oldest in front. | ctxd
CTX-10 | The id of the current context can be read for a session, and for the only session if none is given; reading it again when nothing is new is only a look-up. | ctxd
REQ-1 | A request body is valid for its provider in every state of the session: types, order and alternation of roles, each call followed by its output, unique ids of calls, no blank text, and at most four cache markers, one of which stands at the end of the last request. | ctxd
REQ-2 | In the layout `append`, a request begins with all bytes of the one before it, cache markers not counted, until a repack; a restart of the daemon between two requests changes nothing. | ctxd
REQ-3 | Rendering a window as text repacks nothing, and does not change the next request. | ctxd
REQ-4 | Reasoning is sent only to the provider and model that wrote it and only after the messages that it was written for; `omitted` lists the parts that were left out. | ctxd
REQ-5 | A reply is sent once each of its calls has an output. If the conversation continues before that, a placeholder text takes the place of the output, and a later output is an update. | ctxd
REQ-6 | New files in the metadata pool, activations, changed files and notices are appended as updates, with short ids; their content is exact, except for a `<` that could open or close an update's tag. | ctxd
REQ-7 | `toolcall.record` with `chat` records a tool call and the events that describe it in one write: the next request has the call with its result, also after a kill, and a repeat adds nothing. | ctxd
REQ-8 | Long arguments of a new call are cut, like outputs: a line in them gives the number of tokens and the way to load them; activating the call shows its arguments and its output. | ctxd
REQ-9 | A request is refused, and nothing is recorded, if the provider of its model (the named model, or the one that replied last) does not accept its format; the error lists the accepted formats. OpenAI Chat Completions is accepted for every model. A request is also refused if it asks for more output tokens than the model supports or fewer than the provider accepts, if two tools have the same name, or if the arguments of a tool are not an object. | ctxd
REQ-10 | A dry run of `context.assemble`, such as that of `ctx context`, returns the text or request that would be recorded and records nothing: it uses no number, begins no epoch, and changes neither the next request nor what a revision shows. | ctxd
EPO-1 | Entries that a client sets are in the baseline of the first request; an entry that is added or changed later is an update after the last reply: a system or developer message in the OpenAI APIs, a `<system-update>` elsewhere (but see EPO-14). Several changes are one update. | ctxd
EPO-2 | The removal of a component that the model has received is sent to the model once. | ctxd
EPO-3 | An update never stands between a tool call and its output. | ctxd
EPO-4 | A compaction, a repack, and a change of model or provider each begin an epoch. Its baseline has the values that the model has received by then; differing values follow as an update. | ctxd
EPO-5 | The epoch is durable with the assembly: after a kill, the model's known components and the bytes that are sent are the same. | ctxd
EPO-6 | A purge of an entry or of a file destroys the component texts made from it, in baseline, updates and history; a marker replaces them. | ctxd
EPO-7 | `epoch.show` lists the texts in force at an assembly, a turn or a time, each with the moment at which it was sent, whether the model has replied since, and its source versions. | ctxd
EPO-8 | The names of the declared tools are recorded with each change. | ctxd
EPO-9 | An entry has at most 8 KiB of JSON, and secrets in it are treated like those in all captured text. | ctxd
EPO-10 | For any schedule of changes, unavailable sources, lost races and crashes, the fold of the stored events equals the content of the requests. | ctxd
EPO-11 | If the session or its components change while a request observes them, the request observes all of them again. | ctxd
EPO-12 | If a component is unavailable, only the first request of a session is refused, with an error that names the component and nothing written; later requests use its last value. | ctxd
EPO-13 | A session that moves to another host, or becomes a branch, keeps its entries and the record of the components that its model has received. | ctxd
EPO-14 | For an Anthropic model that accepts system messages in the conversation (`system_updates` in the table of models), an update is such a message. It stands after the user's message, last or followed by a reply, and stays there if the user continues without a reply. | ctxd
EPO-20 | The component `instructions` has the files that the session's harness would read (Claude Code, codex, pi, opencode), in the harness's order and within its limits; each file is one component. | ctxd
EPO-21 | A line of Claude Code's files imports other files by `@path`, up to five levels deep and each once; files of a project import only files of the project. | ctxd
EPO-22 | A path that is not a regular file is ignored and never blocks; a file too long for a component is named with its size and not read; bytes that are not UTF-8 are replaced. | ctxd
EPO-23 | A file that exists but cannot be read, and a working directory that does not exist, make the component unavailable; the deletion of a file removes its component. | ctxd
EPO-24 | Components of a session in a sandbox come only from its mounts, with the rights of its user; no symlink and no import leads out of the mounts. | ctxd
EPO-25 | Each text is a version in the file store, which is the source of the component; while no file changes, none is read and nothing is written. | ctxd
EPO-26 | The text of a file cannot close the tags that enclose it. | ctxd
EPO-27 | The component `skills` lists name, description and path of each skill that the session's harness would find, at most 200. | ctxd
EPO-28 | The front matter of a skill is parsed as a subset of YAML that takes linear time and interprets no reference, tag or collection. | ctxd
EPO-29 | The component `environment` has platform, working directory, repository, branch and shell; `date` has the day in the session's zone. | ctxd
WIN-1 | A window is repacked once the prompt cache has expired, when the budget forces it, and when carrying removable content has cost as much as rewriting the content after it; the cost is at most three times that of the best schedule. | ctxd
WIN-2 | A repack removes outdated content first, then old content by age and size. It never removes pinned or explicitly activated content, and removes content of the running turn only if the budget forces it. New content that exceeds the budget is cut. | ctxd
WIN-3 | If the messages alone exceed the budget, the oldest replies are removed with their tool calls, then old messages of the user, and one line replaces them; the newest message of the user, kept content and new content stay. | ctxd
WIN-4 | The calibrated estimate and its reserve together stay within the budget, and the record of a request has the budget that the policy was given. | ctxd
WIN-5 | Activating an object (or pinning a file) loads in full the content that a repack removed or that a call showed in part: it is an update of the next request, also if the object already counted as active, and is shown once. Content of a pinned or activated object that the budget cut is loaded in full once the budget is larger; the cut copy is outdated then. | ctxd
WIN-6 | Late outputs are removed like other old outputs; the line in their place has the tool, its command or path, the outcome, the tokens and the way to load them. | ctxd
USE-1 | `session.usage` records the tokens that the provider billed for a request, from the unchanged usage objects of Anthropic Messages, OpenAI Responses and OpenAI Chat Completions; their further members are kept. | ctxd
USE-2 | Numbers that are not counts of tokens or contradict each other are refused, as are unknown members of the plain form and contexts that the session does not have; the error names the member and the remedy. | ctxd
USE-3 | Usage without a context applies to the newest request, even if text was assembled since. A request has one usage: a later record corrects it, an equal one writes nothing. It is durable, can be read as of an earlier time, and is exported. | ctxd
USE-4 | Prices are integer micro-dollars for input, each lifetime of cache writes, cache reads and output; each part of each request is rounded once, half up, and every sum adds rounded parts. The requests before a fork count in the session that made them. | ctxd
USE-5 | Once usage was recorded for a model and format, the tokens of its next requests are estimated from it: the last billed request, its output, and the content added since, with weights fitted to the newest requests of the session. Nine of ten increases stay within the reserve; a restart does not change the estimates. Without usage nothing changes. | ctxd
USE-6 | The result of a request, and `ctx context`, give the prefix that it shares with the last request, the change that ended the prefix, its tokens, its price, and the price of sending the full history. | ctxd
CMT-1 | A commit's id is `ctx-` and 8 hex digits of the SHA-256 over parent, content, time in whole seconds and template. If another commit has that id, it is lengthened to 12 or 16 digits, and after that computed over all fields of the commit. No commit is ever replaced. | spec3 ctx-* ID Scheme
CMT-2 | The same content committed twice with the same fields within one second is one commit. | ctxd
CMT-3 | A commit keeps type, content, format, template, session, trigger, ticket, thread, summary and counts as given; principal, machine and time come from the connection, the host and the clock. | spec3 Context Commit Metadata
CMT-4 | A commit is refused, and leaves nothing behind, if it does not have exactly one delta, if the delta is empty or not of its known format, if its type or trigger is unknown, or if its parent or session does not exist. | spec3 Checkpoint
CMT-5 | A commit is durable with its delta once it is acknowledged, and is found after a kill; sent again with the same operation id, it is one commit, also if the first call found an equal commit. | ctxd
CMT-6 | The history of a commit is the commit and its ancestors back to the root, in pages, at any depth. | spec3 History
CMT-7 | Commits can be listed newest first by session, principal, tag and parent, and limited to those without children or without a summary, also after a purge, a rebuild and a restore; `ctxd verify` compares this index with the commits. | spec3 Batch Summarization
CMT-8 | Only summary and tags of a commit change; earlier values can be read as of an earlier time. | spec3 Update Metadata
CMT-9 | A tag names at most one commit of a principal and session; it moves only if the commit that has it is the expected one. `HEAD` and texts with the form of a commit id are no new tags; `ctx tag -d NAME` removes any tag, with `-s SESSION` only one of that session. | ctxd
CMT-10 | Resolving a principal and an instant returns the principal's newest commit at or before the instant, and of commits with the same time the one written later, across time zones and also after a restart; a time without an offset, and any other input, is refused. | spec3 Resolve
CMT-11 | A context is materialised from the nearest compaction or snapshot on, from the root, or from a given ancestor, with each delta exactly once and in order; without a commit it is empty. | spec3 Materialize
CMT-12 | Materialising the same commit again reuses the first result, until something is purged. | spec3 Materialize
CMT-13 | Secrets in deltas and summaries are flagged or redacted by the policy of the session, in JSON lines and CBOR too. | ctxd
CMT-14 | A sandbox sees, continues, changes and materialises only the commits of its own sessions, ancestors included, and the chain from which one of them continues (SES-44); foreign commits look like missing ones. | ctxd
CMT-15 | A commit written by a newer version of ctxd can be read but not changed. | ctxd
CMT-16 | Two commits that continue the same commit are independent branches. | spec3 Branching and Forking
CMT-17 | `ctx checkpoint`, `log` (with its graph), `show`, `diff`, `branch`, `materialize`, `resolve`, `annotate` and `tag` work on commits named by id, tag, `HEAD`, session or `PRINCIPAL@TIME`, and `~N` goes N parents back. Lists on the screen show the thread of each commit, and its summary or the first line of its first prompt, else of its first reply, else its first tool call. | ctxd
CMT-18 | Deltas of several formats in one chain are translated to the requested format, by default that of the first delta; the result names the tier and the losses. | spec3 Format Versioning and Translation
CMT-19 | A purge of `commit:ctx-…` destroys the delta and the summary of a commit and keeps its place in the chain: the commit is still shown and continued, and a context that needs its delta is refused as `purged`. The same holds for a commit with the text of another purged object, and for a commit that is tagged or gets a summary meanwhile. `ctx purge` accepts commits, artifacts and, with `--commits`, a chat with the commits of its session, also those that `ctx capture` could not deliver; without `--commits`, it reports the number of commits that have other texts. | ctxd
CMT-20 | `context.current`, its CBOR form, `ctx current` and the git trailer name a commit: new events of the session are committed first, each event of the chat once, and if there are none, nothing is written. `current.json` names the newest commit, and an assembly in a sandbox updates it. A purge of the chat removes its text from these commits. | ctxd
CMT-21 | Every command accepts the id of a commit or of an assembly, also one that an earlier version issued: `ctx show`, `ctx context` and its `--commit` show either, and if a commit is needed, an assembly stands for the newest commit before it. No id is that of both a commit and an assembly. | ctxd
CMT-22 | A delta of up to 256 MiB can be committed by the address of an artifact that the host has put, and is not copied through a message; if the session's policy is `redact`, a secret in it is redacted in a copy. `ctx checkpoint` sends a long delta in pieces. A large delta is searched in a separate process while other calls continue; if that process ends twice, or takes too much memory, nothing is stored and the error names the reason. Setting a tag or a summary reads no delta. | spec3 Checkpoint
CMT-30 | A context of up to 1 GiB, also one of 10,000 commits, is built and read in pieces, with only a few MiB of its deltas in memory; a context of more than 16 MiB is returned only in pieces. | ctxd
CMT-31 | A turn of a session, such as `s1@12` or `@~2`, names a commit: the newest one that has no event after that turn. If the session had no commit of its own by then, it names the commit with which the session began. | ctxd
CMT-40 | Snapshots of a chain are made in the background as it grows and when it is read, so that the first context after a start reads at most some hundred commits and a few files. Snapshots change no context, no history and no access check. They are removed above 256 MiB, least recently used first, and by a purge of commits; a lost or damaged snapshot is made again. | spec3 Materialize
CMT-50 | Commits are listed oldest first on request, in the order in which they were made; the cursor of each page also leads to commits that are made later. | ctxd
CMT-51 | `commit.deltas` reads the deltas of up to 1,000 commits at once, each byte for byte as it was committed, up to 4 MiB in all; a longer delta is named with its size and read in pieces. A sandbox can read the deltas of the commits that it sees. | ctxd
CMT-52 | `commit.discard` destroys the deltas and summaries of up to 1,000 commits, which keep their places in their chains; text that another entity also has is kept. A call that names an unknown commit destroys nothing. The method exists only on the host. | ctxd
CMT-53 | A session's own commits refer to outputs of tool calls. A context in another format than theirs contains these outputs; a note replaces an output that is purged or gone. A sandbox receives only outputs of its own sessions, at most 16 Mi characters in one context, and no other object through a reference in a delta; for other callers only the size of a context is limited. `events-v1` keeps the references. | ctxd
WHY-1 | `context.why` and `ctx context --why` report how the newest window shows an object, since which assembly, and by which rule; for files and tool calls, in both layouts, also in a sandbox. If a session has requests, only they count: rendering text does not change the result. Of an object whose content was purged, the rule is the purge. | ctxd
WHY-2 | Every request can be rendered again byte for byte, with its figures, also after a restart, after later changes and in a branch of its session. If its content was purged, rendering is refused, and the next request is recorded anew. Format, layout, model and version of the repack policy are recorded with each request. | ctxd
BUD-1 | If the context would exceed the session's budget, active objects are left out, oldest tool calls first, pinned ones never; each is listed with its reason. | ctxd
BUD-2 | The plan can be requested for any budget without assembling. | ctxd
BUD-3 | Objects left out for the budget stay in their sets. | ctxd
NOT-1 | A session is notified when another session changes an object it has read; a sandbox is notified of the change, never of its author. | ctxd
NOT-2 | A session is not notified of its own changes, nor of objects it never read. | ctxd
NOT-3 | Notices can be read from any sequence on, also after a restart; a subscription loses and repeats none. | ctxd
NOT-4 | The sessions that have an object in their index can be listed. | ctxd
TRK-1 | A file that a session has read is tracked without polling by clients: each change on disk becomes a new version, and a notice to every session that read the file. | spec 5.8
TRK-2 | A directory needs one watch of the operating system, regardless of the number of files and sessions; starting or ending the tracking of a file affects no other. | spec 5.8
TRK-3 | Many changes of one file in a short time create few versions, and always one of the final state. | ctxd
TRK-4 | A watch that is lost or refused (a limit, an overflow, a directory that vanished, an unmount) is reported with its reason. Polling replaces it where possible, and it is restored as soon as possible; no rendered context depends on a watch. | ctxd
TRK-5 | A tracked file is attached, orphaned or resumed, and `tracker.list` reports the state, its start and its reason. | spec 5.9
TRK-6 | Files are tracked for a session while it is in use: not while it is paused or closed, and after a restart from its next use, when changes made meanwhile are found. | spec 5.9
TRK-7 | Only paths that the daemon itself can access are tracked; no target of a symlink out of a sandbox's mounts is watched. | spec 5.8
TRK-8 | When a tracked file of a working session changes, the session has a moment to report the change as its own. A version that a tracker stored has no author until the first session reports the edit, however late: then its readers are notified again, with the author. The author's own later reads return no notice of it. | ctxd
TRK-9 | If a file system does not respond, its trackers report it within seconds, with one log line, and do not access it until it responds; then they are attached again. Meanwhile all other files stay tracked, and the daemon can shut down. | ctxd
TRK-10 | Files on file systems without change events (kernel file systems such as `proc`, network file systems, most FUSE file systems) are polled, and `tracker.list` reports the polling. | ctxd
RPC-1 | Each line is one JSON-RPC 2.0 message; `hello` is optional. | ctxd
RPC-2 | Malformed input gets the standard's error and never harms another client. | ctxd
RPC-3 | A method that a connection may not call is reported as an unknown method. | ctxd
RPC-4 | Every write with an `op_id` that changes something is applied once; a resend gets the first result, and a resend with other parameters is refused; after a purge of what the call wrote, one of another method or session is refused, as the digest of the parameters is erased too. A call that changed nothing is not recorded, and its resend is executed again. | ctxd
RPC-5 | A request can be cancelled, and ends at its deadline. | ctxd
RPC-6 | `rpc.discover` returns the checked-in OpenRPC document, and a breaking change fails a test. | ctxd
RPC-7 | The calls of one session take effect in the order they arrive; those that arrive while it is being created wait for it, unless it begins with the context of another session. | ctxd
RPC-8 | Frames, depth, batches and requests in flight are bounded, and the bounds are published. | ctxd
RPC-9 | Connections are scheduled round robin, one slice each, bounded in lines and in time, regardless of content: blank lines, stray responses and malformed lines cost as much as calls. While several connections write, each has a window of undecided writes. While a connection of the host is interactive (it sends each call after the reply to the previous one), its call starts at once, and slices and windows of the other connections are smaller; an interactive sandbox affects only other sandboxes in this way. A flood at most doubles the latency of others: the figures are `isolation` and `flood` of `python -m bench`. | ctxd
RPC-10 | Parameters are closed: an unknown member is refused at every level, as are a user message without content and a number that is not finite. | ctxd
RPC-11 | Replies in preparation, and replies that a client has not read, are bounded in bytes per connection, per sandbox and for the daemon: a call that would exceed the bound waits, and a reply too long for a sandbox is refused as `too_large`. Whatever one sandbox does, the daemon stays within 256 MB above idle: the figure is `memory`. | ctxd
RPC-12 | The content of a context of 64 KiB or more is passed to the clients of the daemon's own user as a file, whose descriptor is sent with the reply; sandboxes, other users, batches, relays and clients that do not request it get the same content in the line. A client that does not read has one descriptor waiting, however many it requests. | ctxd
DUR-1 | An acknowledged write survives a kill at any moment; none is applied twice. | ctxd
DUR-2 | Every acknowledged write carries a receipt: its sequence, the chain hash there and its valid time. | ctxd
DUR-3 | A full disk, quota or file at its size limit makes the daemon read-only with an error that names the remedy; reads continue, and writes resume automatically; both are logged. | ctxd
DUR-4 | After a failed flush no further write is acknowledged, and the daemon exits with 74. | ctxd
DUR-5 | A second daemon on the same state directory is refused; the error names the process that holds it. | ctxd
DUR-6 | `ctxd verify` recomputes every hash and the chain and finds every change of a byte that matters. It also reads a backup or a state directory on read-only media; one that cannot be opened is not called damaged. | ctxd
DUR-7 | A backup can be made while the daemon runs; a restored one returns the same results. A directory into which a restore was interrupted is refused by a daemon, and replaced by the next restore. A backup or a restore that fails for lack of room or because of a disk names the cause, the place and the remedy, and leaves no copy. Nothing is written into a backup: neither a daemon nor a restore uses it, or a directory in it, as a state directory. | ctxd
DUR-8 | A journal that lacks acknowledged writes is detected and made read-only. | ctxd
DUR-9 | After the state directory is removed or replaced, the next write is refused as `data_loss`, and the error names the place where earlier acknowledged writes can still be found. | ctxd
DUR-12 | A background scrub reads the whole store repeatedly at a bounded rate, resumes after a restart of the daemon, and reports in `daemon.status` damage that no read has encountered. A lack of descriptors or memory, and a text that is purged meanwhile, do not count as damage. | ctxd
DUR-14 | Content above 1 MiB is durable before its write is accepted: writes of other sessions do not wait for it, a full disk causes only that write to be refused, and content that no write refers to is removed. | ctxd
DUR-11 | A state directory with an older schema is migrated at the start or by `ctxd migrate`, whose `--dry-run` lists the steps: its database is copied first, and an interrupted migration resumes. A newer schema is refused. A state directory written by the first version opens with all its data. | ctxd
DUR-13 | A session whose segments were written by an earlier version opens and continues. A segment or bundle of a newer version, or with an unknown operation, is refused by name and never misread. | ctxd
DUR-10 | Loss or damage of the head witness, of `secrets.key` and of the indexes that reads depend on is reported in `daemon.status` and by `ctxd verify`; a read that finds no data for an index entry returns `corrupt`. | ctxd
DUR-16 | Journal rows and texts of 768 bytes to 1 MiB are stored compressed: those of a write that arrives alone in its own commit, all others in the background after a second without a write, or a little each second in a store that is never idle. No step processes more than 64 KiB or one value, whichever is larger; a full disk and a kill lose nothing. Both forms are read, searched, purged, verified, rebuilt and backed up alike. | ctxd
ART-1 | An artifact is a sequence of bytes of any size, addressed by its BLAKE3 hash. It is on disk before anything refers to it; every byte that is read is compared with its hash. | ctxd
ART-2 | Artifacts share content-defined chunks: one more byte anywhere adds at most a few chunks. Compressible data is compressed. | ctxd
ART-3 | A kill at any moment of a write or a removal loses no acknowledged artifact and leaves no partial one. The index of artifacts is rebuilt from their packs if it is missing or damaged. | ctxd
ART-4 | Every flipped byte in a pack and every changed value of the index is detected, and the damaged artifact is named. Writing a damaged artifact again repairs it. | ctxd
ART-5 | A removed artifact is overwritten at once, except for the chunks that other artifacts share. | ctxd
ART-6 | An artifact is sent in pieces, each of which is on disk once it is acknowledged; an upload continues after a lost connection or a restart, and only a complete upload becomes an artifact. Artifacts are read in pieces too. | ctxd
ART-7 | An artifact is named by its address, by a unique prefix of the address, or by a tag; an ambiguous name is refused with the candidates. If the caller gives an expected artifact, a tag moves only from that artifact. | ctxd
ART-8 | `artifact.gc` removes artifacts that no version, tag or pin reaches and that are older than a grace period, `ephemeral` ones first, then the least recently used, until a given size is reached; a dry run removes nothing. An artifact that is reached by the time of the removal stays. Packs that contain mostly removed data are rewritten. | ctxd
ART-11 | A sandbox puts artifacts in pieces, within its quota of written bytes. It reads, by full address or tag, the artifacts that it has put and those that tool calls and commits of its sessions have. A foreign artifact looks like a missing one, except that the daemon takes some 50 microseconds longer to refuse it: a sandbox that has the whole content of an artifact can find out whether the host has it too. A sandbox does not change the artifacts that others have put. | ctxd
ART-14 | An artifact that a sandbox puts is searched for secrets, whatever its size, under the strictest policy of its sessions. Under `flag`, `artifact.stat` shows rule and tag. Under `redact`, an artifact with a secret is refused with rule and offset, nothing of it is stored, and the upload is erased. | ctxd
ART-12 | Content that was not put as an artifact can be read, measured and tagged by its full address, whatever its size. | ctxd
ART-13 | With `artifacts.bytes_max`, artifacts are collected within a minute after they exceed that size: `ephemeral` ones first, then the least recently used, also across restarts, and none that is pinned, tagged, reached or younger than 10 minutes. | ctxd
ART-10 | `ctx artifact put|get|stat|ls|tag|gc|fsck`: `put` stores a file and `get` returns it byte for byte; `put`, run again after an interruption, sends only the missing pieces; `get -o` writes a whole file or none. | ctxd
ART-9 | After a purge or a collection no pack, database or log contains any of the bytes, as `ctxd verify --absent` shows. | ctxd
OPS-1 | The socket never has wider permissions than configured; a stale one is replaced, a live one refused. | ctxd
OPS-2 | On SIGTERM the daemon finishes calls in flight, refuses new ones, and exits with 0. | ctxd
OPS-3 | `daemon.status` reports health, queue and figures. | ctxd
OPS-4 | A file of the operator extends and changes the table of models; an invalid file is refused with its name and the error, an unknown model with a list of the known ones. | ctxd
SVC-14 | `ctxd service install` and `make install DESTDIR=` install units, completions and man pages, upgrade them, and remove exactly the files that they installed. With `--dry-run`, `ctxd service install` and `uninstall` print the files and change none. | ctxd
SVC-1 | Under a service manager the daemon reports ready once the journal is recovered and it serves calls, and reports when it is stopping. It listens on the socket that the service manager passes, and does not remove that socket. | ctxd
SVC-2 | The service manager keeps the sockets of sandboxes: a client that connects to one of them, or to the host's, while no daemon runs is served by the next daemon. | ctxd
SVC-3 | The watchdog is pinged only if the event loop runs and the store's thread has completed work; a daemon that is frozen, or whose disk hangs, does not ping. | ctxd
SVC-4 | On SIGHUP the settings are read again: those that a running daemon can change are applied, the others are reported, and invalid settings change nothing. | ctxd
SVC-5 | Output to the systemd journal is one JSON object per line, prefixed with its severity. | ctxd
SVC-6 | systemd accepts the units without warnings, and its analysis reports an exposure of at most 0.8, or 1.5 with an XTDB node. | ctxd
SVC-7 | Over restarts under load, by SIGTERM or SIGKILL, no acknowledged write is lost or duplicated, and clients that resend are interrupted only briefly: the figure is `python -m bench restart`. | ctxd
SVC-8 | With `metrics.socket` the daemon exports metrics to Prometheus on a separate socket: by method, outcome and state, with counters that never decrease while it runs, and without client-chosen values. | ctxd
SVC-9 | No log contains client data or file content, whatever the failure: errors are logged by type and location only. | ctxd
SVC-16 | If no further thread can be started, calls that need one fail with an error that a client retries, and work in the background is done later; the daemon keeps running. | ctxd
BOX-1 | A registered sandbox has a directory with a socket and `current.json`; after a restart of the daemon, even by SIGKILL, it is at the same path with the same permissions. | ctxd
BOX-2 | On a sandbox's socket, methods that were not granted do not exist; the registration of sandboxes never does. | ctxd
BOX-3 | For a sandbox, every method treats sessions of others as nonexistent. | ctxd
BOX-4 | A sandbox lasts as long as its harness's connection plus a grace period, or for a fixed time, also if the clock is set back; then its socket, connections and directory are removed, and its sessions remain. A release that cannot be written changes nothing. | ctxd
BOX-5 | A sandbox that exceeds its quota is refused with `quota_exceeded` and a retry time; other sandboxes are not affected. | ctxd
BOX-6 | The current context is the same by call, in the file, in CBOR and from `ctx current`. | spec 3
BOX-7 | No path, symlink or rename leads the daemon out of a sandbox's mounts, nor onto a file system mounted below one. A link resolves as it does in the sandbox. A file that the mounts no longer contain is not read, even if the session indexed it before. | ctxd
BOX-8 | Content that a sandbox reports for a shared file is an object of its own session, unless the daemon reads the same content. | ctxd
BOX-9 | No reply to a sandbox contains a path of the host or another session. Of a shared file it shows versions from the sandbox's first read on, captured with rights that the sandbox has; no outcome or history depends on the knowledge of other sessions. | ctxd
BOX-10 | A sandbox's socket and file are accessible to the daemon's user and to the user who registers the sandbox, or the user given as `uid`, whether or not the daemon runs as root; to no other. | ctxd
BOX-11 | While a sandbox is registered, the daemon reads nothing below its mounts that the sandbox's user could not, and does not reveal its existence: hard links, swapped names and intermediate directories included. | ctxd
BOX-12 | An empty parameter is refused or means empty, never absent; ids of filesystems, sessions and principals contain no control, direction or blank characters. | ctxd
BOX-13 | A daemon that runs as root refuses to start with a group on its socket, whose members could read every file, unless `socket_group_as_root` is set. | ctxd
BOX-14 | Sandboxes' sockets and connections leave file descriptors to the host and to the store: beyond that, a sandbox is refused as `rate_limited`. A disk failure during the removal of a sandbox's socket does not stop the daemon. | ctxd
BOX-15 | The directories of sandboxes are in `s` beside the socket, in `s.d` if the socket itself is called `s`. A configuration that places the state directory, the metrics socket or the node's socket there is refused. | ctxd
SEC-1 | All captures of a session (files, tool calls with their arguments, messages, prompt and labels) are subject to its policy: `off`, `flag` or `redact`. A redacted secret becomes `[REDACTED:rule:tag]`, the same tag for equal secrets, and none of its bytes are stored. Captures of a sandbox, and files it may have written, have separate tags, so that a sandbox cannot confirm a guessed secret. | ctxd
SEC-2 | Under `flag`, text and context are unchanged; listings and metadata show the rules and tags of findings, never the secret. | ctxd
SEC-3 | A redacted file's source hash is keyed, so that it cannot be guessed; indexing it unchanged costs one hash and writes nothing. | ctxd
SEC-4 | A capture under one policy is not replaced by another session's capture under a laxer one; a session that redacts reads unredacted captures again. | ctxd
SEC-5 | Rules are RE2, scanned in time linear in the text; an invalid rule file prevents the daemon from starting, and the error names rule and reason. | ctxd
SEC-6 | No log line contains a secret that matches a rule. | ctxd
SEC-7 | `ctx scan` searches files, standard input, a session or the store, including chats, entries, declared tools, metadata and earlier versions; it exits with 8 if it finds a secret, and never shows it. | ctxd
SEC-8 | `object.purge` destroys an object's text in every version, and wherever equal text is stored: no file of the state directory contains it, and `ctxd verify --absent` searches them all. A tool call is purged with the messages of its session that hold its text or its arguments; the chat of a session that moved to another host is reported as residue. A purged file gets no version at a past time. The chain stays verifiable, and reads return `purged`. The duration of a purge, and the amount that it reads, do not grow with the store. | ctxd
SEC-9 | A purge that is killed at any step has either not begun or is completed by the next start. | ctxd
SEC-10 | The messages of a chat, or of some of its turns, can be purged with the same proof: turns, roles and tool calls remain, messages read `[purged]`, the session continues, and no listing, bundle or earlier assembly shows the text. In every version of the session and of its forks, titles, values of labels, and summaries and tags of commits are erased that are equal to a purged text or contain one of at least 8 characters, as are titles of at least 8 characters that are a part of one; the labels that identify a session of a harness stay. If a segment or a commit of the session or of its forks cannot be read, the purge names it, fails and erases nothing; the daemon and other writes continue. | ctxd
SEC-12 | Secrets in any content of a typed event (text, reasoning, arguments, output, summary, attachment, metadata) are subject to the policy, found by a scan, redacted in an export, and purged with their turn. | ctxd
SEC-13 | Secrets in the declarations of tools are subject to the session's policy: under `redact` neither the request nor any file of the state directory contains them. | ctxd
SEC-14 | A purge returns, and `ctx purge` prints, the paths of purged files that still exist on the daemon's host: the next change of one is recorded with all of its text. | ctxd
SEC-15 | A purge of a chat or of its turns leaves the outputs of tool calls, which are objects of their own. It returns their number and ids, and `ctx purge` names them. | ctxd
SEC-11 | `session.export` and `ctx session export` return a session's entries, prompt, turns, tool calls and file metadata in order, page by page; every secret that matches a rule is redacted, whatever the policy. | ctxd
CLI-1 | Every `ctx` command takes `--json`, `--socket` and `--timeout`, before or after any word of its name, and ends with a documented exit code. | ctxd
CLI-2 | Errors are one line with cause, place and remedy, on standard error. A remedy names the command for a method of the daemon if there is one. | ctxd
CLI-3 | `ctx context` shows the context by path and command, with the reason and cost of each part, and compares two turns. Without a moment it shows the window of the next request if the session has requests, else the next text, and names which; of a session without an assembly that is paused or has no chat, the context of its newest commit. A note replaces the cost of the newest request if it showed purged content. `--list` lists the recorded assemblies with number, turn, time, tokens and format. | ctxd
CLI-6 | `ctx current` prints the id of the current context, or prints nothing (with `--json`, `null`) and exits with 3, within 200 ms whatever the daemon does. It takes a unique prefix of a session. If a session is named that does not exist, it reports this on standard error. | spec 3
CLI-7 | `ctx install git` adds a `Context-Id` trailer to commits made in a context; existing hooks keep running, and `ctx uninstall git` restores them; with `--dry-run`, both print the change and make none. A link among the hooks is never written through. | ctxd
CLI-8 | `ctx top` shows current calls, writes, queues, tracked files and the busiest sandboxes, once or repeatedly. | ctxd
CLI-10 | Without a session argument, a command uses `$CTXD_SESSION`, the only open session, or the one whose working directory contains the current directory. A session that is paused and has no turn, such as an imported one, is a default only if no other session is open, and then only by its working directory. A command that would read or continue the newest commit is refused if several sessions could be meant. | ctxd
CLI-11 | Times can be written naturally: `now`, `yesterday 13:44`, `2 hours ago`, a date, or milliseconds since 1970. `now` includes everything recorded, also if the clock was set back since. | ctxd
CLI-12 | The shell completes ids and paths from the daemon; completion waits at most 200 ms for it. | ctxd
CLI-13 | `ctx transcript` reads files of Claude Code, codex, pi and opencode, and their headless output, as typed events; every record becomes at least one event, and the file is not changed. | ctxd
CLI-14 | Nouns agree in number with the counts before them: "1 file", "2 files". | ctxd
CLI-15 | `ctx session chat` shows the events of a session; if it has events only in its commits, such as an imported one, those of its newest commit. It hides and counts events without text, and cuts the output of tool calls, whether recorded or imported, after 10 lines or 1,000 characters. With `--all` or `--json`, everything is shown. | ctxd
CLI-9 | `ctx doctor` checks the running daemon's limits, its trackers, and the sockets and mounts of its sandboxes, and starts a real sandbox to check that calls from inside are served. All findings have the same form, and a remedy begins with the action to take. | ctxd
SRC-1 | `search.query` and `ctx search` find prompts, responses, reasoning, tool calls by their arguments and output, compactions, errors of providers, titles and labels of sessions, and the summaries and deltas of captured and imported commits, within a second of their write, also beside 500 writes a second. Beside writes that use a whole processor, and after a large one, such as an import, the index may lag behind; results and `ctx status` report the lag in rows. The content of files is not searched. | ctxd
SRC-2 | A query consists of words, phrases in double quotes, and prefixes of words with `*`. A text matches if it contains all of them, in any order; case and accents are ignored, and every other character separates words. An unclosed quote, a prefix of one letter and a query without a word are refused with the remedy. | ctxd
SRC-3 | A search can be limited to a session, a project, a harness, a tool, a file that arguments name, a kind of text, failed tool calls and a time. Each result is on exactly one page, best match or newest text first, even if texts are added, changed or removed between two pages; this holds for the 32 most recent searches. | ctxd
SRC-4 | Each result has a snippet with the positions of its matches, and a command that shows the result: a turn with `ctx session chat`, a tool call, a commit or a session. `ctx search` also shows the title of the session, or else its project. | ctxd
SRC-5 | The index is in the cache directory, or in the state directory if the cache directory cannot be used, and belongs to one state directory. After a kill it continues where it was. An index that is missing, damaged, of another schema or of another journal is rebuilt; `ctx search --rebuild` does this on request. No backup contains it. `ctx status` shows its lag. | ctxd
SRC-6 | Purged text is not found once the purge is acknowledged. After a purge without residue, no file of the state directory or of the index contains a word of it, also if the daemon was killed in between or a rebuild was in progress. The time that this takes does not depend on the size of the index. | ctxd
SRC-7 | Sessions in the trash are not found until they are restored. | ctxd
SRC-8 | A snippet is one line without control characters and without marks that hide or reorder text, on a terminal and in JSON. | ctxd
SRC-9 | A sandbox searches its own sessions only; text of other sessions is not found, and their names are treated as nonexistent. | ctxd
REV-1 | A revision names a session and a moment of it: `s1@12` is turn 12, `@~2` two turns back from the newest, `@{2 hours ago}` a time, `s1@12~1` the turn before turn 12, and `ctx-…` a recorded context. Turn N begins with the N-th user message, and turn 0 holds the messages before the first. A revision without a session means the command's own session; one without a moment means the session as it is now. | ctxd
REV-2 | If a session has exactly the given text as its id, it takes precedence over a turn of another session. Any other text is refused in one line with its remedy, and so is a moment for a command that works on a session as it is now. | ctxd
REV-3 | `session.turn` finds a turn by its number, its distance from another, or a time, and returns the journal sequence at its end, before the next turn begins; it reads no messages. `session.get` returns a session as of a sequence or a time. | ctxd
REV-4 | `ctx context`, its `--diff`, `ctx session show`, `ctx object as-of`, `ctx object diff` and `ctx query --at` accept revisions. A context at a turn is its newest request, or if it has none, its newest text; a context at a time is chosen in the same way from the contexts recorded by then. An object at a turn is shown as of the end of the turn, an object at a context id as the model saw it. | ctxd
REV-5 | `ctx epoch show` prints the system context that the model had received by a revision: the baseline, then each update, with its turn, its time and the version of each file or entry that it came from. | ctxd
CLT-1 | The client runs on asyncio, on uvloop and on trio, and has a synchronous twin with the same methods. | ctxd
CLT-2 | The client reconnects and resends requests that are safe to resend, with the same `op_id`. | ctxd
CLT-3 | Importing the client requires only anyio, msgspec and the protocol package. | ctxd
CLT-4 | A value that the daemon cannot accept (nested deeper than 64 levels, a number that is not finite, bytes for text) is refused before it is sent, and so is a deadline that is not a number of seconds up to 1e9. An error without an id fails every call that it may concern. | ctxd
CLT-5 | A harness is type-checked strictly against the installed client, by mypy and by pyright: no result is `Any`. | ctxd
CLT-6 | Every method of client and handle has its signature, its errors and an example that runs. | ctxd
CLT-7 | The client declares tools by which a model lists, activates, deactivates, pins, commits and searches earlier text, in the form of each provider and in at most 450 tokens. Whatever arguments a model gives, their handler returns a bounded text, which names the remedy if the call was wrong. | ctxd
CLT-8 | If the deadline of a call passes while the call is being repeated, the call raises the previous failure, which names the cause; for a write its outcome is unknown. | ctxd
CLT-9 | While a call is repeated, the client reports each failure to the caller's `on_retry`; `ctx` prints the first one that it still has after a second. | ctxd
CLT-10 | A forked process may go on with a synchronous client: it connects again on first use, on a connection of its own, and waits for no call of its parent. An asynchronous client raises `Closed` at once outside its process and event loop. | ctxd
CLT-11 | Iterating the notices of `follow` after its block has ended raises `Closed`, also in a task of the asynchronous client that waits for a notice. | ctxd
MCP-1 | `ctx mcp` is an MCP server for a harness, in both eras of the protocol: its tools list, activate, deactivate and pin objects of the session, commit it, and search the text of all sessions; `ctx://object/ID` is the content of an object, and `ctx://commit/ID` the context of a commit as text. | ctxd
MCP-2 | The declarations of all its tools have at most 450 tokens of four bytes. | ctxd
MCP-3 | A call applies to the session of `-s`, else to the session that captures the harness's own session, else to that of `$CTXD_SESSION`, else to the default of every command. If nothing captures the harness's session, or several are open by default, the call is an error that says what the user can do, and no other session changes. A search covers all sessions and needs none. | ctxd
MCP-4 | The server keeps running while the daemon is unavailable or restarts, and replies to all concurrent calls. It replies with an error to a message that is no request, reads a text that was cut within a character, and ends without an error when the harness does. | ctxd
MCP-5 | An error is one line with the remedy, whatever a client or a foreign name contains. Content above 256 KiB is cut, and a line states this. Input that is not a request does not end the server; the end of the harness does. While 64 calls or replies wait for a client that does not read, no more of its requests are read. | ctxd
MCP-6 | Without the extra `mcp`, `ctx mcp` exits with one line that names the remedy. | ctxd
MCP-7 | The models of the real Claude Code, codex and opencode call the tools of `ctx mcp` in the session that captures them. The model of pi gets the same tools from pi's extension, and the content of an object that it activates. | ctxd
HND-1 | `ctx resume` and `ctx fork` with `--in` write a session of Claude Code, codex, pi or opencode that has the messages of the context, from its newest compaction on and with the messages that the compaction left in the window, whichever harness wrote them; from a commit of a sub-agent, those of the sub-agent after those of its callers; messages between agents of codex are among them, unless only codex can read them, and summaries that pi made of other branches. They print the command that continues the session in its directory; with `--exec` they are replaced by that command. | ctxd
HND-2 | A hand-over reports each part that it leaves out, with a count: sub-agents, unless the commit is of one, notices of another harness, bookkeeping, and reasoning unless the whole context is of the same harness. An interrupted call gets an output that states the interruption, unless it belongs to a reply that the harness leaves out of its requests. A call that the provider ran and that has no recorded output gets an output that states this. Names and ids of tools are those that providers accept; the name of an MCP server's tool includes the server. The text names an attachment that no model of the harness can be sent. A summary that its provider encrypted is handed over only within the same harness. | ctxd
HND-3 | A handed-over session has its own id, is readable only by the user, and changes no existing file. A hand-over that fails leaves neither file nor session, and one line names the remedy. | ctxd
HND-4 | The daemon's session of a hand-over continues from the commit and receives the events that the harness's hooks record; two discussions that start from the context id of one finding, in two harnesses, do not see each other. Without hooks, an import adds the events that the harness has written since then, after the commit, once; if there are none, the context stays that of the commit. If the harness goes back to before a message of the handed-over part, the file is imported as a chain of its own, with that part. An import recognises the file of a hand-over by its bytes, and its messages in a database of opencode by their ids, so that reasoning, images and interrupted calls in it are not imported again. | spec 3
HND-5 | Session files of codex, pi and opencode that are written from the events of such a file have the same events. | ctxd
HND-6 | The real Claude Code, codex, pi and opencode continue a session of another harness that was handed over to them: their requests have its messages, outputs and order, and the events that follow are in the chain of the commit. | ctxd
HND-7 | A session that is imported and handed over to the same harness keeps its messages, and the commands, notices of tasks and interruptions, and texts of hooks that its model has seen, in the form in which it saw them, and leaves out what it has not seen: the request with which the real Claude Code, codex, pi and opencode continue it equals that of their own resume. | ctxd
FMT-1 | Deltas in `events-v1` and `bureau-agent-v1` are read and written byte for byte as in Bureau, including unknown fields and types; `events-v1` holds every typed event without loss. | spec 3
FMT-2 | Deltas in `claude-code-v1` are complete lines of a session file; a delta that is written from another format reads back as the same conversation: one chain, and one for each sub-agent. | spec 3
FMT-3 | A chain of deltas becomes one conversation in the wanted format, by the best of four tiers: deltas joined unchanged, events mapped field by field, a narrative, or unchanged deltas of an unknown format. One chain may mix formats. | spec 3
FMT-4 | A translation names its tier, and every part that it lost, with a count. | spec 3
FMT-5 | Equal deltas give equal bytes; deltas of 64 MB and chains of 10,000 deltas take memory for one delta and 8 MiB. | ctxd
FMT-6 | `ctx transcript --as` writes a transcript in another format to standard output, and lists the losses. | ctxd
FMT-7 | A delta in CBOR may hold any value: dates, sets and other tagged values stay byte for byte, are searched for secrets, and have a form in every other format. References within an item are refused, because a few bytes of them could expand without bound, and so is a map with a duplicate key. | ctxd
CAP-1 | `ctx capture` understands stream-json of Claude Code, nested or flat: prompts, text, reasoning with its signature, tool calls and results, also those of the provider and of sub-agents. An unknown line is kept verbatim; lines of any length, and events larger than a delta, are kept whole. | spec 3
CAP-2 | The figures of a captured session are those of its result line, with all four kinds of tokens; the cost is also kept in whole millionths of a dollar. | ctxd
CAP-3 | Captured events become a chain of commits, cut as the policy determines: at turn boundaries (before tools run; each, or each Nth), tool results, the end of the session, and SIGUSR1. During a capture, the current context has all events that were delivered, and SIGUSR1 delivers the rest. Each event is in exactly one delta. | spec 3
CAP-4 | A compaction ends the delta before it, and is a compaction commit, with its summary if the output has one. | spec 3
CAP-5 | The output of a captured agent passes through unchanged; `ctx capture` returns the agent's exit code, and the agent receives the signals. The agent's output may also be piped to standard input. | ctxd
CAP-6 | Secrets in captured output are subject to the session's policy, and redacted before anything is stored. | ctxd
CAP-7 | After a kill of the agent, of `ctx capture` or of the daemon, the newest commit can be continued. While the daemon is unavailable the agent keeps running, and its commits are delivered once, later. | ctxd
CAP-8 | A captured agent never waits for the daemon. Commits that cannot be delivered are kept in a file, of at most 256 MiB and readable only by the user, and the next capture delivers each of them once; a message names the file and the reason. | ctxd
CAP-9 | A capture of a session continues the newest commit of the session, unless another parent or a new chain is requested. Output without any message makes no commit, and a note reports it. | ctxd
CAP-10 | `ctx capture --from FILE` commits a whole transcript of any supported harness: each event once and in order, at the times of the transcript, with a chain for each sub-agent that begins at the commit with the call that spawned it. A repeated run makes no commit twice. | ctxd
CAP-11 | An output of 64 MB, in one line or in many, is captured whole: `ctx capture` takes less than 512 MiB of memory for it, and the daemon less than 256 MiB. | ctxd
ADP-1 | `CtxdSaver` and `AsyncCtxdSaver` keep LangGraph's checkpoints and pending writes in the daemon, and pass all eight capabilities of `langgraph-checkpoint-conformance`, unchanged; graphs are interrupted, resumed and forked with them. | ctxd
ADP-2 | A thread of LangGraph takes at most about twice the bytes that are new in it, not its whole state at each step; each checkpoint is read as it was put, at any depth and in any branch. | ctxd
ADP-3 | A checkpoint and a write are on disk once the saver has returned; a kill of the daemon between calls loses none of them. Without a daemon, the error names its socket. | ctxd
ADP-4 | Any number of programs can write to one thread at once, also while another one prunes or deletes it: no checkpoint that was acknowledged and not removed is lost, and no removed checkpoint is returned. | ctxd
ADP-5 | Deleted parts of a thread are destroyed at once; `ctxd verify --absent` finds nothing of them. | ctxd
ADP-6 | Threads and namespaces can have any name, ids of checkpoints up to 256 characters, and states any size up to 256 MiB; values that cannot be stored are refused with the reason. | ctxd
ADP-7 | In a sandbox, threads are kept in a session that the sandbox was given; they cannot be deleted from there. | ctxd
ADP-8 | `ctx session ls` lists threads as sessions of the agent `langgraph`, and `ctx log` their checkpoints and writes; no command uses such a session by default. | ctxd
ADP-10 | `CtxdSessionStore` keeps the sessions of the Claude Agent SDK in the daemon, and passes the conformance suite of the SDK, unchanged, with all optional methods. | ctxd
ADP-11 | Entries that the session store of the Agent SDK has accepted are on disk, are returned equal and in their order, and are stored once even if they are sent again, also while several processes add to one session. Deleted entries are destroyed, for every program. | ctxd
ADP-12 | A session in the store has the form of an imported session of Claude Code: `ctx session ls` lists it, `ctx log` shows its commits by the prompts, with compactions and sub-agents, and a session can start from each commit. | ctxd
HOK-1 | `ctx-hook` records each event of a harness in a session that is created at the first event and named by the harness's id: prompts, tool calls with their outputs, failures, sub-agents, compactions, responses and ends, in order. An end pauses the session, the next event resumes it. | ctxd
HOK-2 | An event is recorded once, however many hooks report it and however often it is sent. It is identified by the harness's own id of the prompt, the call or the turn, else by the operation id of the hook. | ctxd
HOK-3 | While the daemon does not respond, events wait in files of mode 0600, and the next hook delivers them in order, before its own event, also if the clock was set back; no kill of the daemon and no lost reply loses or repeats one. | ctxd
HOK-4 | A hook exits with 0, within four seconds (`$CTXD_HOOK_SECONDS` sets another limit for the delivery; an invalid value is ignored, and `ctx doctor` reports it), and prints only the daemon's output for the harness. This holds for invalid input, a daemon that hangs, a session in the trash, an event above the limit of a call (of long texts, lists and objects in it the beginning is recorded), an environment file that cannot be used, and a directory of waiting events that is a link or accessible to others, which the hook does not use. | ctxd
HOK-5 | The space for waiting events is limited, and the disk may be full: once the daemon responds, the waiting events are delivered nevertheless, and after them the new event for which there was no room. An event that can be neither kept nor delivered is dropped, and `ctx doctor` reports the number and the reason. | ctxd
HOK-6 | `ctx purge` also erases the waiting events that quote the object by its whole id or path, even if only waiting events know the object. It erases them once the daemon has purged the object, and no hook delivers one in between. This includes events for the daemons of other sockets, in the state directory of this environment and in the default one. | ctxd
HOK-7 | A hundred sessions whose hooks run at once lose nothing, also when the daemon is killed meanwhile. | ctxd
HOK-8 | On request, the model receives a large tool output as its beginning, its end and the id of the whole output, which is kept. | ctxd
HOK-9 | `ctx current` in a command that a connected harness runs names the context of that harness's session: by `$CTXD_SESSION` in Claude Code and opencode, by the harness's own variable in codex and pi. | ctxd
HOK-10 | A headless session of the real Claude Code, codex, pi and opencode, with a prompt, two tool calls and a reply, is captured live and completely while the daemon is killed and restarted, and has a context commit. | ctxd
HOK-11 | `ctx install claude`, `codex`, `pi` and `opencode` add hooks to the harness's own settings. Unknown members, comments, the layout, and the owner, group and mode of the file are preserved, and a copy is kept; codex trusts the hooks by their hash; a second installation changes nothing. If a program without `$XDG_RUNTIME_DIR` and `$XDG_STATE_HOME`, such as one that cron starts, would look for another daemon, the hooks name the socket. `--dry-run` prints the patch. Settings to which nothing can be added, that are nested too deeply to be read, or whose owner cannot be preserved are not changed, and the reason is reported. | ctxd
HOK-12 | `ctx uninstall` removes what `ctx install` added and nothing else; if nothing else has changed, the file is the same as before, byte for byte. A hook that a person added keeps its group, its matcher and, in codex, its trust, wherever it is; if this is not possible, nothing is changed, and the remedy is reported. | ctxd
HOK-13 | `ctx install status` and `ctx doctor` report for each harness whether it is connected, whether its hooks are current, and which setting disables all hooks or some of ctxd's hooks, with the remedy; `ctx install codex` enables hooks that codex has disabled, and `ctx install` reports such a setting too. `ctx doctor` also reports events that wait for the daemons of other sockets. | ctxd
HOK-14 | Each event of a session is in one of its commits, once, whichever of hooks, `ctx import` and `ctx capture` see it, in any order. An import leaves out the events that the session's hooks have recorded (for the exception see HOK-18): it matches calls by their native ids, and prompts and replies by their text, also if secrets in the text were flagged or redacted, each as often as it occurs. It adds the rest in a chain beside that of the hooks; prompts after the hooks' last prompt form a chain that continues it. It waits while hooks record. A capture makes no commits of events that the hooks record, unless the caller names another session or a parent. | ctxd
HOK-15 | A tool call is recorded when it starts, so that a call that never ends is stored without an output, and a hand-over reports it as interrupted. Its output is recorded once, by the hook of its end or by an import, also if the hooks of its start and its end run at the same time. A hook that arrives after the end of its session leaves the session paused. A call whose native id an earlier call has, with other arguments or another output, is recorded under an id of its own. | ctxd
HOK-16 | The text of the model before a tool call is recorded once, before the call: the extension and the plugin report it, and with the hooks of Claude Code and codex `ctx-hook` delivers it from the last 16 MiB of their transcript, without delay also if the call has a large input. If the harness writes the text only after the call has begun, the hook waits for it up to two seconds, in a separate process, and the harness does not wait; at the end of the call both wait up to half a second. While the start of a call waits, later events of the session wait behind it, also in separate processes, so that a call which is denied, and has no end, is recorded before the reply and the next prompt. A text that is written later than that is recorded after its call, or by an import. | ctxd
HOK-17 | A resumed session of the real Claude Code, codex, pi and opencode continues in the same session of ctxd, with a compaction in between (of Claude Code, pi and opencode with its summary); a sub-agent of Claude Code is recorded apart from the main conversation. | ctxd
HOK-18 | If a session was resumed or forked while its hooks were new, if it went back to before a turn that hooks have recorded (rewind, rollback, a pending revert of opencode) or to a branch that it had left, if a turn without hooks follows turns with hooks which follow an imported one, or if a turn that hooks have recorded has a call or an output that they have not (a call that the harness refuses, one whose end has no hook), an import corrects its context, also after a resume: it commits the whole transcript as one chain, which the session continues from then on, so that the newest context has each turn of its current branch once. The events that the hooks had recorded by then also stay in their own commits. A transcript that lacks a prompt or an output of the hooks replaces nothing. | ctxd
HOK-19 | Messages that a compaction of Claude Code keeps word for word after its summary stay in the context that its hooks record, each once in the chat. Claude Code names these messages in its transcript only after the hook has ended; a process that the hook starts waits for them for up to two seconds, and later events of the session wait behind it. If the transcript names none in time, the context has the summary alone until an import. | ctxd
HOK-20 | Texts that opencode adds in the name of the user (after a compaction, beside a prompt, after a sub-agent's task) are recorded as notices of the kind `synthetic`, in the order in which its model sees them; the prompt that it repeats after an overflow is recorded as a prompt. An import of the same session adds none of them again. | ctxd
HOK-21 | A sub-agent of opencode or codex has a session of its own, from an import, the plugin of opencode or the hooks of codex. The label `spawned_by` is the id of its caller's session. | ctxd
HOK-22 | The end of an opencode process pauses the sessions that it recorded, and the end of the task of a sub-agent of opencode or codex that of the sub-agent, so that an import need not wait; the next event resumes a session. | ctxd
HOK-23 | An image or a document in the output of a tool is an attachment of the result, as an import of the session stores it, and is recorded once, also if an import sees it too. If it was cut because the event is too large, the text of the result states this. | ctxd
IMP-1 | `ctx import claude|codex|pi|opencode [PATH]` stores sessions of a harness as chains of commits in the harness's own format: each complete line once, with its native ids, at the time at which it was written; a line that the source has twice, with the same id, is stored once. A chain is stored in the session to which the harness's hooks record (lines that they have recorded are left out: HOK-14) or, without hooks, in a paused session with that id. The source is not changed. The result counts events by class, and what was imported, unchanged, rewritten, copied and recorded by hooks. | ctxd
IMP-2 | A repeated import makes no commit twice and opens only changed sources. A last line that is still being written is left to the next import. If a file was replaced or truncated, the chain continues from the last commit that is equal; a file that is being rewritten is read once it is complete. Sources that another version of ctxd has imported keep their commits, and later lines continue them, even if this version reads some lines differently. `--dry-run` reports the same and stores nothing. | ctxd
IMP-3 | A branch of a transcript's tree, a rollback of codex (which counts messages of other agents as turns), and a sub-agent (in the file, beside it, in its directory, or a session of its own; of the conversation or of another sub-agent) is a chain that begins after the record that it follows; a sub-agent that no record names begins after the last one that is not later than its start, if the harness records that. A branch of Claude Code begins with a prompt or a command that a person typed; records of one step are not branches, nor is a record that was written after its own children. A compaction is a compaction commit, with the messages that it leaves in the window, before the summary if it summarises only the rest of the conversation; a rollback undoes a compaction together with the turn in which it was made. Records before the first message begin that conversation, also if an earlier import has seen only them. A sub-agent of codex that was given its caller's history begins there, without the copy. Of the chains that end with the source, the main conversation has the newest commit: if a sub-agent ran on longer, an import, but not a watch, dates the commits of the sub-agent before the end of the main conversation. | spec 3
IMP-4 | A fork, a continuation, a copy from another machine, and a copy of a copy continue from the commits of their origin, whether or not they name it. Lines that the origin has under the same native id with the same content are counted as copied; for a fork of Claude Code or opencode and a sub-agent of codex, this holds even if some lines are left out. A fork in the first tables of opencode has messages from before it was created, under other ids: its origin is an older session of the same directory with the same beginning. A line without an id is a copy if its origin has it at the same place. A fork of codex by reference continues at the byte that it names; if hooks have recorded its origin up to there, it begins with a copy of the origin's lines. The output of a headless run that resumes a session continues that of the newest earlier run; output that names no session is a session of its own. | ctxd
IMP-5 | Secrets in imported lines are flagged or redacted, by the session's policy, before they are stored; also in lines that are not records. | ctxd
IMP-6 | An import keeps unknown records unchanged, and recognises a format by records that only one harness writes. It keeps each line that is not a JSON object byte for byte inside one, and a line too long for one delta in parts that are read as one. It reads rollouts compressed with zstd, and headless output in a file of JSON, as lines or as one array. It lists everything that it leaves out (empty files, other formats, pipes, broken links, damaged files, paths that are not UTF-8) with the reason; if a single file is given that contains no session, the exit code is 1. | ctxd
IMP-7 | Databases of opencode, of both generations, are read while opencode writes to them: each session once, including messages that were changed in place. A continued session is not imported again because its row has changed. Messages that a pending revert has removed are a separate branch. JSON storage, in either of its layouts, has its ids from its paths. A database that is locked or damaged is listed, and read by the next import. | ctxd
IMP-8 | Without PATH, an import reads the places where the harness keeps its sessions, according to the harness's own settings. | ctxd
IMP-9 | `ctx import --watch` imports new lines as they are written, until it is interrupted, and waits if the harness has no sessions yet; a scan finds changes that no event of the file system reports, and all changes if files cannot be watched. | ctxd
IMP-10 | `commit.import` commits many deltas of a session in one write, all or none. The same delta in the same thread after the same parent is one commit, whenever and in whatever calls it is imported, so that an import that was killed continues where it was. Imports from one harness by one user take turns. | ctxd
IMP-11 | Threads that codex itself leaves out of its lists (guardian, review, memory consolidation) are imported as archived sessions; one that was unarchived stays in the lists. | ctxd
IMP-12 | The daemon's memory stays bounded while a transcript of any size is imported: freed memory is returned to the system within seconds. | ctxd
IMP-13 | If a later entry of pi removes an entry from its branch, or replaces its content, or Claude Code takes messages back, for example a refused reply, this applies to every model that continues from there in another harness; the entries are kept as they were written. | ctxd
IMP-14 | A message that a person typed while the model worked, which Claude Code stores as an attachment, is a prompt, and is handed over to every harness; a message that the harness queued, or forwarded from the session of a coordinator, is a notice. An error of the provider's API in place of a reply is also a notice, and is given to no model; the text of a context shows that of every harness. A prompt that begins like a text of the harness, but continues differently, is a prompt. | ctxd
IMP-15 | An image or a document in a record of Claude Code is read as such: its bytes, its text, its address, or its name if the record has nothing else. The findings of a provider's tool are the text of its result, and the original result is kept beside them: Claude Code gets call and result back as they were if one response has both, and as an ordinary call and its output otherwise, as other harnesses do. | ctxd
IMP-16 | Records that only some versions of a harness write are read as what they mean there: items and headless output of codex before 0.44, and compactions in headless output of pi. | ctxd
IMP-17 | If the user of Claude Code goes back to an earlier message, the newest context ends there, as in the harness itself, also before the next prompt; what was after it is a branch. If a compaction has left that message in the window, the context has its summary and the messages that it left up to there. | ctxd
IMP-18 | A rollout of codex without an item of type `message` has its conversation in its `event_msg` records: prompts, replies and reasoning. A message inside another record, such as an event or a compaction, is no item. If items follow later, each message counts once. | ctxd
IMP-19 | A commit that is made after a purge repeats no line of a purged commit, whether for a compaction, a rewind or a branch; a fork that is imported after it has no purged title or first prompt. | ctxd
XTB-1 | Reads as of any time and histories are the same from an XTDB node as from the embedded tables, corrections and deletions too, on both time axes. | ctxd
XTB-2 | A version comes back from an XTDB node byte for byte; names chosen by clients never become keys that XTDB indexes. | ctxd
XTB-3 | After a failure, a transaction is known not to be applied, or its outcome is unknown; it is never guessed. A response that is not exactly what was requested counts as no response. | ctxd
XTB-4 | Every request to an XTDB node is bounded in time; after repeated failures a circuit breaker pauses requests, for up to a minute, and then sends a trial request. | ctxd
XTB-5 | Other servers of XTDB's HTTP protocol can be used as well: reads, histories and a daemon's versions are the same there. | ctxd
XTB-6 | Ids at a node are read in pages, so that no request grows with the node; a comparison counts only the rows that its own journal wrote there. | ctxd
XTB-7 | Every document at a node shows its true type and hashes at the top level, whatever numbers or hash bytes it holds. | ctxd
XTB-8 | Queries look up documents at a node by index: by writer, session, tool, turn and path. | ctxd
XTB-9 | If a server refuses requests for long ids, the error names the setting that makes the server accept them. | ctxd
XTB-10 | With an XTDB node, Datalog queries over all documents run as of a valid time and a transaction, bounded in time and rows; the embedded store refuses them with a remedy. | ctxd
XDB-1 | The bundled node serves the part of XTDB's HTTP protocol that ctxd uses on a Unix socket, and distinguishes a missing entity from a missing operation. | ctxd
XDB-2 | Every wait and every query of the node is bounded, and every failure names its class, its message and the operation; bad requests are reported as such. | ctxd
XDB-3 | Nothing sent to the node is run as code. | ctxd
XDB-4 | The node's socket is accessible to its owner only; a stale one is replaced, a live one and any other file in its place are refused. | ctxd
XDB-5 | Data that the node has accepted survives a kill of the node, and its index is rebuilt from log and documents. | ctxd
XDB-6 | Two nodes on one PostgreSQL see each other's writes. | ctxd
XDB-7 | `ctxd xtdb install` accepts only the jars it was built with, resumes after an interruption, and names a remedy if something is missing. | ctxd
XDB-8 | `ctxd xtdb check` reports Java, installation, socket, version, ingester, flushing and lag of a node, each with a remedy; `ctxd doctor` does so where the store uses a node. | ctxd
XDB-9 | A node that keeps its data on disk or in PostgreSQL stores more text than its heap can hold, and a read of any number of its documents leaves it running. | ctxd
XDB-10 | A response of the node takes a bounded part of its heap: a history above the bound is read in pages, other responses above it are refused. | ctxd
PRJ-1 | Every row of the journal reaches the XTDB node once and in order, across kills of either at any moment. | ctxd
PRJ-2 | A node that is slow, paused, failed or unavailable for hours delays no write and causes none to fail while the backlog has room; afterwards it receives the backlog. | ctxd
PRJ-3 | A node that lost its data, or went back to an older copy, is detected and receives the missing rows; a node with rows that the journal lacks is not changed, and a reason and a remedy are reported. | ctxd
PRJ-4 | A row that the node refuses is identified, quarantined alone, and reported; `ctxd requeue` projects it once the node accepts it. | ctxd
PRJ-5 | `ctxd migrate` moves from either store to the other without loss; after an interruption it resumes, or the state is as before. | ctxd
PRJ-6 | `ctxd verify --store` compares journal, embedded versions and node, version by version and text by text; `ctxd rebuild-xtdb` fills an empty node and compares. | ctxd
PRJ-7 | With an XTDB node the daemon meets this whole specification; the node serves as-of reads where its cursor covers them, the embedded versions serve the others, and the result is the same. | ctxd
PRJ-8 | From half of the backlog limit on, the level is reported; from four fifths on, writes are throttled to the drain rate; at the limit they are refused, not applied, with a retry time. | ctxd
PRJ-9 | The store is `sqlite` or `xtdb`. It is given as a name or as a table with the address, in a file, the environment or a flag. | ctxd
PRJ-10 | A purge evicts all versions and texts from the node, and content that the node still holds is not shown meanwhile. Wherever the purge is interrupted, a text that another object holds stays, and the remaining text of a partly purged entity is stored again. The same holds for a node that is attached later, or rebuilds its index. | ctxd
PRJ-11 | Rows that change one entity repeatedly are projected many to a transaction. | ctxd
HST-1 | A session paused on one of several hosts can be resumed on another with the same sets, chat and settings, and each of its recorded assemblies has the same bytes there; the same holds when it returns, and after an interruption at any step. | ctxd
HST-2 | A session has one owner among the hosts. While its owner is alive, other hosts refuse the session with `session_owned_elsewhere`, which names the owner; they list it on request, as they list the hosts with their sessions, lag and lease. | ctxd
HST-3 | A session can be taken over if its host was silent for the length of its lease; this is judged only by the observer's own monotonic clock and by the log at the time of the claim. | ctxd
HST-4 | Writes of a host to a session that it no longer owns do not reach that session. They are kept completely in a separate session, which the error names, also if the host regains the session before it learns of the loss; no acknowledged write is lost. | ctxd
HST-5 | Clocks of hosts that differ by minutes affect no reads, contexts or ownership. | ctxd
HST-6 | Equal ids of tool calls, and of sessions, from two hosts are distinguished, and an existing text still shows the same objects as before. | ctxd
HST-7 | Equal text is stored once for all hosts. | ctxd
HST-8 | A pause returns once the whole session is in the log and another host may resume it, or fails as `session_not_released` with the number of missing rows; with `wait` false it returns once the pause is durable locally. While the node is unavailable, resuming a released session is refused as the retryable `store_unavailable`; everything else works. | ctxd
HST-9 | A purge on one host does not prevent a session from continuing on another, whether claimed before or after, and whether it is the purged session or another with the same text: the text is purged there too, and the rest is complete. That host destroys its copies of purged commits and tool calls, in its database and in snapshots, before it continues. | ctxd
HST-10 | A chat is purged on the host that owns its session: on another host the call is refused with `session_owned_elsewhere`, and a purge overtaken by a takeover erases nothing of the session there. | ctxd
HST-11 | An import or a branch writes rows in proportion to the part of the session that the journal lacks, also when it is restarted, and copies nothing once the hosts are in sync. | ctxd
HST-12 | A host that projects, or has no active session, does not renew its lease; renewals reuse a bounded set of documents. | ctxd
HST-13 | A takeover that is interrupted at any step is completed by the host that claimed the session, also after a restart, and leaves the session paused and released unless a client has resumed it; until then that host refuses writes to the session. | ctxd
HST-14 | The commits of a session move with it to another host, with their ancestors, deltas, artifacts, summaries and tags, under the same ids; purged content stays purged. The chain continues there, and a fork at a commit made on the other host is the session of that moment. | ctxd
HST-15 | A session is forked on the host that owns it, and the fork moves to other hosts independently, with the history that it shares. A fork of late writes keeps them when its session returns, and their commits become those of the branch. | ctxd
HST-16 | With several hosts `session.gc` destroys at a node no entity of which another host has versions, and no text; a session that a fork still shares is kept, also if the fork moved to another host. | ctxd
"""

REQUIREMENTS: tuple[Requirement, ...] = tuple(
    Requirement(*(part.strip() for part in row.split(" | "))) for row in _ROWS.strip().splitlines()
)
"""Every numbered behaviour, in the order of SSOT.md."""
