// Conversations as files: JSON as `kvasir chat` writes with `/save`, Markdown, and a backup of all.

import { Conversation } from "/page/conversation.js";
import { checkedOverflow } from "/page/overflow.js";
import { Tree, checkMessage } from "/page/tree.js";

const HEADINGS = { system: "System", user: "User", assistant: "Assistant", tool: "Tool" };
const HEADING = /^## (System|User|Assistant|Tool(?: \S+)?)$/;
const CALLS = /\n*```tool_calls\n([^]*?)\n```\s*$/;

/** The shown branch as a request body, as `/save` writes it. */
export const toJson = (conversation) => `${JSON.stringify({ messages: conversation.messages() }, null, 2)}\n`;

/** The shown branch as Markdown: a heading per message. Lines that look like one are escaped. */
export function toMarkdown(conversation) {
  const part = ({ role, content, tool_calls: calls, tool_call_id: id }) => {
    const text = (content ?? "").replace(/^(\\*)(?=## )/gm, "\\$1");
    const called = calls?.length ? `\n\n\`\`\`tool_calls\n${JSON.stringify(calls)}\n\`\`\`` : "";
    return `## ${HEADINGS[role]}${role === "tool" ? ` ${id}` : ""}\n\n${text}${called}`.trimEnd();
  };
  return `# ${conversation.label}\n\n${conversation.messages().map(part).join("\n\n")}\n`;
}

/** All conversations with all their branches. */
export const toBackup = (records) => `${JSON.stringify({ conversations: records }, null, 1)}\n`;

/** The conversations of a file, and how many damaged ones were `left` out; throws an error that says what is wrong. */
export function read(name, text) {
  if (/\.(md|markdown|txt)$/i.test(name)) return { conversations: [fromMarkdown(text)], left: 0 };
  const value = parsed(text, "is not valid JSON");
  if (Array.isArray(value?.conversations)) return fromBackup(value.conversations);
  if (Array.isArray(value?.messages)) return { conversations: [fromMessages(value.messages)], left: 0 };
  throw new Error("holds neither `messages` nor `conversations`");
}

function parsed(text, problem) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(problem);
  }
}

function fromBackup(records) {
  if (!records.length) throw new Error("holds no conversations");
  const conversations = [];
  let problem = null;
  for (const record of records) {
    try {
      conversations.push(fromRecord(record ?? {}));
    } catch (error) {
      problem ??= error;
    }
  }
  if (!conversations.length) throw problem;
  return { conversations, left: records.length - conversations.length };
}

/** A backup's record under a new id: what is there is not overwritten. */
function fromRecord({ title, named, created, updated, system, overflow, tree }) {
  const text = (value) => (typeof value === "string" ? value : "");
  const time = (value) => (Number.isFinite(value) ? value : Date.now());
  const restored = Tree.from(tree);
  const exceeding = checkedOverflow(overflow);
  if (restored.nodes.size === 1 && !exceeding?.content) throw new Error("a conversation has no messages");
  for (const node of restored.nodes.values()) if (node.meta) node.meta = plainMeta(node.meta);
  return new Conversation({ title: text(title), named: named === true, created: time(created), updated: time(updated), system: text(system), overflow: exceeding, tree: restored });
}

/** What a file may say of a message: how it ended. Its sessions and figures are those of another server. */
function plainMeta({ stopped, failed, error, finish, window }) {
  const isText = (value) => typeof value === "string";
  return { ...(Number.isSafeInteger(window) && { window }), ...(stopped === true && { stopped }), ...(failed === true && { failed }), ...(isText(error) && { error }), ...(isText(finish) && { finish }) };
}

/** Text of a message, whose content may be a list of parts. */
function contentOf(content) {
  if (!Array.isArray(content)) return content ?? "";
  return content.map((part) => (typeof part?.text === "string" ? part.text : "")).join("\n\n");
}

function fromMessages(all, title = "") {
  if (all.some((message) => typeof message !== "object" || message === null)) throw new Error("a message is no object");
  const isSystem = ({ role }) => role === "system" || role === "developer";
  const system = all.filter(isSystem).map(({ content }) => contentOf(content)).join("\n\n");
  const messages = all.filter((message) => !isSystem(message)).map((message) => ({ ...message, content: contentOf(message.content) }));
  if (!messages.length) throw new Error("holds no messages");
  messages.forEach(checkMessage);
  return new Conversation({ title, named: Boolean(title), system, tree: Tree.of(messages) });
}

function fromMarkdown(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const title = /^# (.*)$/.exec(lines[0])?.[1].trim() ?? "";
  const parts = [];
  for (const line of lines) {
    const heading = HEADING.exec(line)?.[1];
    if (heading) parts.push({ heading, lines: [] });
    else parts.at(-1)?.lines.push(line.replace(/^\\(?=\\*## )/, ""));
  }
  if (!parts.length) throw new Error("holds no heading `## User`");
  return fromMessages(parts.map(messageOf), title);
}

function messageOf({ heading, lines }) {
  const [word, id] = heading.split(" "), role = word.toLowerCase();
  const text = lines.join("\n").trim(), calls = role === "assistant" ? CALLS.exec(text) : null;
  const message = { role, content: calls ? text.slice(0, calls.index) : text };
  if (calls) message.tool_calls = parsed(calls[1], "the calls of an answer are not valid JSON");
  if (role === "tool") message.tool_call_id = id ?? "";
  return message;
}

/** A file name for a title. */
export function fileName(title, ending) {
  const plain = title.normalize("NFKD").replace(/[^\w -]+/g, "").trim().replace(/\s+/g, "-").slice(0, 50).toLowerCase();
  return `${plain || "conversation"}.${ending}`;
}

/** Lets the browser store a text as a file. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
