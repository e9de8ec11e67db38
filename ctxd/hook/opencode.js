// Installed by `ctx install opencode`; `ctx uninstall opencode` removes it. Passes the events of a session to ctxd.
import { spawnSync } from "node:child_process";

const COMMAND = /* command */ [];

// opencode makes an instance of the plugin for each project.
const atExit = [];
process.on("exit", () => {
  for (const end of atExit) end();
});

export const CtxdPlugin = async ({ directory }) => {
  const started = new Set();
  // Unfinished texts, by part: some providers end a text only after the tool calls that follow it.
  const texts = new Map();
  const reported = new Map();
  // Calls in flight, by part: a fork also copies failed calls, which the original session has reported already.
  const calls = new Set();
  // The ids under which calls began: for the call of a command's sub-agent, opencode passes the id of its part.
  const begun = new Set();
  const prompts = new Map();
  // The summary that is being written, by session, and the first message that stays in the window.
  const summaries = new Map();
  const tails = new Map();
  // Sub-agents and their callers.
  const callers = new Map();
  // Messages that opencode writes in the name of the user, and their texts that follow a summary in progress.
  const added = new Set();
  const held = new Map();

  function reportTexts(session) {
    for (const [part, { of, message, text }] of texts) {
      if (of !== session || !text) continue;
      texts.delete(part);
      reported.set(part, { of, text });
      hook(session, "Stop", { last_assistant_message: text, turn_id: `${message}/${part}` });
    }
  }

  // Each text is a separate prompt, as in the database, so that an import recognises it.
  function reportUserText(session, message, { id, type, text, prompt, synthetic, ignored }) {
    // A command that a sub-agent runs.
    if (type === "subtask" && prompt) hook(session, "UserPromptSubmit", { prompt, prompt_id: message });
    if (type !== "text" || !text || ignored) return;
    if (synthetic) hook(session, "SyntheticText", { text, part_id: id, prompt_id: message });
    else hook(session, "UserPromptSubmit", { prompt: text, prompt_id: message });
  }

  function reportHeldTexts(session) {
    for (const part of held.get(session) ?? []) reportUserText(session, part.messageID, part);
    held.delete(session);
  }

  // Blocks for some 20 ms, until the process ends: opencode may exit without waiting for its event handlers.
  function hook(session, event, members) {
    try {
      if (!started.has(session)) {
        started.add(session);
        hook(session, "SessionStart", { source: "startup", spawned_by: callers.get(session) });
      }
      const input = JSON.stringify({ session_id: session, cwd: directory, hook_event_name: event, ...members });
      return spawnSync(COMMAND[0], COMMAND.slice(1), { input, encoding: "utf8", timeout: 5000 }).stdout ?? "";
    } catch {
      return "";
    }
  }

  function reportEnd(session, reason) {
    if (!started.has(session)) return;
    hook(session, "SessionEnd", { reason });
    started.delete(session);
  }

  atExit.push(() => {
    for (const session of started) reportEnd(session, "exit");
  });

  return {
    "chat.message": async (input, output) => {
      const id = output.message?.id ?? input.messageID;
      prompts.set(input.sessionID, [...(prompts.get(input.sessionID) ?? []), id]);
      for (const part of output.parts) reportUserText(input.sessionID, id, part);
    },
    "tool.execute.before": async (input, output) => {
      const members = { tool_name: input.tool, tool_input: output.args, tool_use_id: input.callID };
      begun.add(input.callID);
      reportTexts(input.sessionID);
      hook(input.sessionID, "PreToolUse", members);
    },
    "tool.execute.after": async (input, output) => {
      begun.delete(input.callID);
      const printed = hook(input.sessionID, "PostToolUse", {
        tool_name: input.tool,
        tool_input: input.args,
        tool_response: output.attachments?.length
          ? { output: output.output, attachments: output.attachments }
          : (output.output ?? output),
        tool_use_id: input.callID,
      });
      if (printed && typeof output.output === "string") output.output = JSON.parse(printed).text;
    },
    "shell.env": async (input, output) => {
      if (input.sessionID) output.env.CTXD_SESSION = `opencode-${input.sessionID}`;
    },
    "experimental.session.compacting": async (input) => {
      summaries.set(input.sessionID, []);
    },
    event: async ({ event }) => {
      const { info, part, partID, sessionID, messageID, field, delta } = event.properties ?? {};
      if (event.type === "session.created" && info?.parentID) callers.set(info.id, info.parentID);
      // A fork copies its messages before its first prompt.
      if (event.type === "message.updated" && info?.role === "user") {
        const known = prompts.get(info.sessionID);
        if (known && !known.includes(info.id)) added.add(info.id);
      }
      const isUpdate = event.type === "message.part.updated";
      if (isUpdate && part?.type === "text" && !part.text) {
        texts.set(part.id, { of: part.sessionID, message: part.messageID, text: "" });
      }
      if (event.type === "message.part.delta" && field === "text" && texts.has(partID)) {
        texts.set(partID, { of: sessionID, message: messageID, text: texts.get(partID).text + delta });
      }
      if (isUpdate && part?.type === "text" && added.has(part.messageID)) {
        if (summaries.has(part.sessionID)) held.set(part.sessionID, [...(held.get(part.sessionID) ?? []), part]);
        else reportUserText(part.sessionID, part.messageID, part);
      }
      if (isUpdate && part?.type === "compaction") tails.set(part.sessionID, part.tail_start_id);
      const status = isUpdate && part?.type === "tool" ? part.state?.status : undefined;
      if (status === "pending" || status === "running") calls.add(part.id);
      if (status === "completed") calls.delete(part.id);
      if (status === "error" && calls.delete(part.id)) {
        hook(part.sessionID, "PostToolUseFailure", {
          tool_name: part.tool,
          tool_input: part.state.input,
          error: part.state.error,
          tool_use_id: begun.delete(part.id) ? part.id : part.callID,
        });
        begun.delete(part.callID);
      }
      if (event.type === "session.idle") {
        // Forget texts that were interrupted.
        for (const known of [texts, reported]) {
          for (const [id, { of }] of known) if (of === sessionID) known.delete(id);
        }
        summaries.delete(sessionID);
        reportHeldTexts(sessionID);
        // The task of a sub-agent is over; another one resumes its session.
        if (callers.has(sessionID)) reportEnd(sessionID, "idle");
      }
      if (event.type === "session.compacted") {
        const tail = tails.get(sessionID);
        // A tail may begin within a turn, but the window has whole turns. Ids of messages ascend.
        const kept = (tail && prompts.get(sessionID)?.findLast((id) => id <= tail)) ?? tail;
        const summary = (summaries.get(sessionID) ?? []).join("\n");
        summaries.delete(sessionID);
        hook(sessionID, "PostCompact", summary ? { compact_summary: summary, kept_from: kept } : {});
        reportHeldTexts(sessionID);
      }
    },
    "experimental.text.complete": async (input, output) => {
      const known = reported.get(input.partID)?.text ?? "";
      texts.delete(input.partID);
      reported.delete(input.partID);
      if (summaries.has(input.sessionID)) {
        summaries.get(input.sessionID).push(output.text);
        return;
      }
      const text = output.text.startsWith(known.trimEnd()) ? output.text.slice(known.length) : output.text;
      if (text) hook(input.sessionID, "Stop", { last_assistant_message: text, turn_id: `${input.messageID}/${input.partID}` });
    },
  };
};
