// Installed by `ctx install pi`; `ctx uninstall pi` removes it. Passes the events of a session to ctxd.
import { spawn } from "node:child_process";

const COMMAND = /* command */ [];

// One process after the other: events arrive in order. A failure of one never reaches pi.
let last: Promise<string> = Promise.resolve("");
function hook(ctx: any, event: string, members: object): Promise<string> {
  const input = JSON.stringify({
    session_id: ctx?.sessionManager?.getSessionId?.(),
    transcript_path: ctx?.sessionManager?.getSessionFile?.(),
    cwd: ctx?.cwd,
    hook_event_name: event,
    ...members,
  });
  last = last.then(
    () =>
      new Promise((resolve) => {
        try {
          const child = spawn(COMMAND[0], COMMAND.slice(1), { stdio: ["pipe", "pipe", "ignore"] });
          let printed = "";
          child.stdout.on("data", (piece: Buffer) => (printed += piece));
          child.stdin.on("error", () => {});
          child.on("error", () => resolve(""));
          child.on("close", () => resolve(printed));
          child.stdin.end(input);
        } catch {
          resolve("");
        }
      }),
  );
  return last;
}

function textOf(content: any): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.filter((block) => block?.type === "text").map((block) => block.text).join("\n");
}

export default function (pi: any) {
  pi.on("session_start", async (event: any, ctx: any) => {
    await hook(ctx, "SessionStart", { source: event.reason });
  });
  pi.on("message_end", async (event: any, ctx: any) => {
    const { role, content, timestamp, model, stopReason } = event.message ?? {};
    const text = textOf(content);
    if (!text) return;
    // The transcript has the same time of the message.
    if (role === "user") await hook(ctx, "UserPromptSubmit", { prompt: text, prompt_id: String(timestamp) });
    if (role === "assistant") {
      await hook(ctx, "Stop", { last_assistant_message: text, turn_id: String(timestamp), model, stop_reason: stopReason });
    }
  });
  pi.on("tool_call", async (event: any, ctx: any) => {
    const members = { tool_name: event.toolName, tool_input: event.input, tool_use_id: event.toolCallId };
    await hook(ctx, "PreToolUse", members);
  });
  pi.on("tool_result", async (event: any, ctx: any) => {
    const printed = await hook(ctx, "PostToolUse", {
      tool_name: event.toolName,
      tool_input: event.input,
      tool_response: { content: event.content },
      tool_use_id: event.toolCallId,
      is_error: event.isError === true,
    });
    if (printed) return { content: [{ type: "text", text: JSON.parse(printed).text }] };
  });
  pi.on("session_compact", async (event: any, ctx: any) => {
    const { summary, firstKeptEntryId, tokensBefore } = event.compactionEntry ?? {};
    const members = { trigger: event.reason, compact_summary: summary, kept_from: firstKeptEntryId, tokens_before: tokensBefore };
    await hook(ctx, "PostCompact", members);
  });
  pi.on("session_shutdown", async (event: any, ctx: any) => {
    await hook(ctx, "SessionEnd", { reason: event.reason });
  });
}
