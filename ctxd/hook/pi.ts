// Installed by `ctx install pi`; `ctx uninstall pi` removes it. Passes the events of a session to ctxd, and lets the
// model arrange its context with the tools of `ctx mcp`: pi itself has no MCP client.
import { spawn } from "node:child_process";
import { dirname, join } from "node:path";

const COMMAND: string[] = /* command */ [];
const TOOLS: any[] = /* tools */ [];
const CONTENT_CHARS_MAX = 50_000;
const ANSWER_MS = 30_000;

// Processes run one after another, so that events arrive in order. Their failures never reach pi.
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
          child.stdout.setEncoding("utf8");
          child.stdout.on("data", (piece: string) => (printed += piece));
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

// One `ctx mcp` for all calls, started by the first call. Responses are matched to requests by id.
let server: { ask: (method: string, params: object) => Promise<any>; end: () => void } | undefined;
function mcp() {
  if (server) return server;
  const at = COMMAND.indexOf("--socket");
  const words = ["mcp", ...(at < 0 ? [] : COMMAND.slice(at, at + 2))];
  const child = spawn(join(dirname(COMMAND[0]), "ctx"), words, { stdio: ["pipe", "pipe", "pipe"] });
  const waiting = new Map<number, (answer: any) => void>();
  let number = 0;
  let received = "";
  let complaint = "";
  const end = () => {
    server = undefined;
    for (const answer of waiting.values()) answer({ error: { message: complaint.trim() || "ctx mcp has ended" } });
    waiting.clear();
  };
  child.on("error", (error) => ((complaint = String(error)), end()));
  child.on("close", end);
  child.stdin.on("error", () => {});
  child.stderr.setEncoding("utf8");
  child.stderr.on("data", (piece: string) => (complaint = (complaint + piece).slice(-1_000)));
  child.stdout.setEncoding("utf8");
  child.stdout.on("data", (piece: string) => {
    const lines = (received + piece).split("\n");
    received = lines.pop() ?? "";
    for (const line of lines) {
      const answer = line ? JSON.parse(line) : {};
      waiting.get(answer.id)?.(answer);
      waiting.delete(answer.id);
    }
  });
  const send = (message: object) => child.stdin.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
  const request = (method: string, params: object) =>
    new Promise<any>((resolve, reject) => {
      const id = ++number;
      const late = setTimeout(() => (waiting.delete(id), reject(new Error("ctx mcp does not answer"))), ANSWER_MS);
      waiting.set(id, ({ error, result }) => {
        clearTimeout(late);
        error ? reject(new Error(error.message)) : resolve(result);
      });
      send({ id, method, params });
    });
  const client = { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "pi", version: "1" } };
  const begun = request("initialize", client).then(() => send({ method: "notifications/initialized" }));
  begun.catch(() => {});
  server = { ask: (method, params) => begun.then(() => request(method, params)), end: () => child.stdin.end() };
  return server;
}

// Returns the result of a tool as text; throws an error, as pi expects.
async function called(ctx: any, name: string, args: any): Promise<string> {
  const _meta = { sessionId: ctx?.sessionManager?.getSessionId?.() };
  const { ask } = mcp();
  const result = await ask("tools/call", { name, arguments: args ?? {}, _meta });
  const text = textOf(result.content);
  if (result.isError) throw new Error(text);
  const uri = name === "context_activate" ? text.match(/ctx:\/\/object\/\S+$/)?.[0] : undefined;
  if (!uri) return text;
  // pi does not read resources.
  const content = (await ask("resources/read", { uri, _meta })).contents[0]?.text ?? "";
  const left = content.length - CONTENT_CHARS_MAX;
  return `${text}\n\n${content.slice(0, CONTENT_CHARS_MAX)}${left > 0 ? `\n[${left} characters follow]` : ""}`;
}

export default function (pi: any) {
  for (const tool of TOOLS) {
    pi.registerTool({
      ...tool,
      label: tool.name,
      execute: async (_id: string, args: any, _signal: any, _update: any, ctx: any) => ({
        content: [{ type: "text", text: await called(ctx, tool.name, args) }],
        details: {},
      }),
    });
  }
  pi.on("session_start", async (event: any, ctx: any) => {
    await hook(ctx, "SessionStart", { source: event.reason });
  });
  pi.on("message_end", async (event: any, ctx: any) => {
    const { role, content, timestamp, model, stopReason } = event.message ?? {};
    const text = textOf(content);
    if (!text) return;
    // The transcript has the same timestamp for the message.
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
    server?.end();
    await hook(ctx, "SessionEnd", { reason: event.reason });
  });
}
