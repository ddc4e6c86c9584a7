// A page with `ai`: sends a message, and resumes the stream when the line was cut.
import { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";

const given = JSON.parse(process.argv[2]);
const say = (what) => console.log(JSON.stringify(what));

class State {
  status = "ready";
  error = undefined;
  messages = given.messages ?? [];
  pushMessage = (message) => { this.messages = [...this.messages, message]; tell(); };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (index, message) => {
    this.messages = [...this.messages.slice(0, index), this.snapshot(message), ...this.messages.slice(index + 1)];
    tell();
  };
  snapshot = (message) => structuredClone(message);
}

class Chat extends AbstractChat {
  constructor(options) { super({ ...options, state: new State() }); }
}

const chat = new Chat({
  id: given.chat,
  transport: new DefaultChatTransport({ api: given.url, headers: given.headers ?? {} }),
  sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
});

function shown() {
  return chat.messages
    .filter((message) => message.role === "assistant")
    .map((message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("+"))
    .join("|");
}
function tell() { if (typeof chat !== "undefined") say({ shown: shown() }); }
const pause = () => new Promise((resolve) => setTimeout(resolve, 200));

async function settle() {
  let left = given.tries ?? 100;
  while (chat.status === "error" && --left > 0) {
    say({ cut: String(chat.error.message) });
    await pause();
    await chat.resumeStream();
  }
}

if (given.resume) await chat.resumeStream();
else await chat.sendMessage({ id: given.message, text: given.text });
await settle();

const asked = chat.messages.at(-1)?.parts.filter((part) => part.state === "approval-requested") ?? [];
if (given.decide && asked.length > 0) {
  say({ asked });
  for (const part of asked) await chat.addToolApprovalResponse({ id: part.approval.id, ...given.decide });
  while (chat.status !== "ready" && chat.status !== "error") await pause();
  await settle();
}
say({ done: true, status: chat.status, error: chat.error && String(chat.error.message), messages: chat.messages });
