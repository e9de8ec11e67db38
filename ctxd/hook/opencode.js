// Installed by `ctx install opencode`; `ctx uninstall opencode` removes it. Passes the events of a session to ctxd.
import { spawnSync } from "node:child_process";

const COMMAND = /* command */ [];

export const CtxdPlugin = async ({ directory }) => {
  const started = new Set();

  // It waits for the process, which takes some 20 ms: opencode does not wait for handlers of events, and then ends.
  function hook(session, event, members) {
    try {
      if (!started.has(session)) {
        started.add(session);
        if (event !== "SessionStart") hook(session, "SessionStart", { source: "startup" });
      }
      const input = JSON.stringify({ session_id: session, cwd: directory, hook_event_name: event, ...members });
      return spawnSync(COMMAND[0], COMMAND.slice(1), { input, encoding: "utf8", timeout: 5000 }).stdout ?? "";
    } catch {
      return "";
    }
  }

  return {
    "chat.message": async (input, output) => {
      const text = output.parts.filter((part) => part.type === "text" && !part.synthetic).map((part) => part.text).join("\n");
      const id = output.message?.id ?? input.messageID;
      if (text) hook(input.sessionID, "UserPromptSubmit", { prompt: text, prompt_id: id });
    },
    "tool.execute.before": async (input, output) => {
      const members = { tool_name: input.tool, tool_input: output.args, tool_use_id: input.callID };
      hook(input.sessionID, "PreToolUse", members);
    },
    "tool.execute.after": async (input, output) => {
      const printed = hook(input.sessionID, "PostToolUse", {
        tool_name: input.tool,
        tool_input: input.args,
        tool_response: output.output ?? output,
        tool_use_id: input.callID,
      });
      if (printed && typeof output.output === "string") output.output = JSON.parse(printed).text;
    },
    "shell.env": async (input, output) => {
      if (input.sessionID) output.env.CTXD_SESSION = `opencode-${input.sessionID}`;
    },
    event: async ({ event }) => {
      const part = event.properties?.part;
      if (event.type === "message.part.updated" && part?.type === "tool" && part.state?.status === "error") {
        hook(part.sessionID, "PostToolUseFailure", {
          tool_name: part.tool,
          tool_input: part.state.input,
          error: part.state.error,
          tool_use_id: part.callID,
        });
      }
      if (event.type === "session.compacted") hook(event.properties.sessionID, "PostCompact", {});
    },
    "experimental.text.complete": async (input, output) => {
      if (output.text) {
        const turn = `${input.messageID}/${input.partID}`;
        hook(input.sessionID, "Stop", { last_assistant_message: output.text, turn_id: turn });
      }
    },
  };
};
