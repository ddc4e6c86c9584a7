// A page with `@ag-ui/client`: runs an agent, and the same run again when the line was cut.
import { HttpAgent } from "@ag-ui/client";

const given = JSON.parse(process.argv[2]);
const say = (what) => console.log(JSON.stringify(what));
console.warn = () => {};
console.error = () => {};
// Of a cut line the client also leaves a promise that nobody handles; a browser logs that and goes on.
process.on("unhandledRejection", () => {});
process.on("uncaughtException", () => {});

const agent = new HttpAgent({ url: given.url, threadId: given.thread, headers: given.headers ?? {} });
agent.setMessages(given.messages ?? [{ id: "m-1", role: "user", content: given.text }]);
const shown = () =>
  agent.messages.filter((m) => m.role === "assistant" && m.content).map((m) => m.content).join("|");

let left = given.tries ?? 100;
async function run(parameters) {
  for (;;) {
    let failed = null;
    try {
      await agent.runAgent(parameters, {
        onMessagesChanged: () => say({ shown: shown() }),
        onRunErrorEvent: ({ event }) => { failed = event.message; },
      });
      if (failed === null) return;
    } catch (error) {
      failed = String(error.message ?? error);
    }
    say({ cut: failed });
    if (--left <= 0) return;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

await run({ runId: given.run });
if (given.decide && agent.pendingInterrupts.length > 0) {
  say({ asked: agent.pendingInterrupts });
  const resume = agent.pendingInterrupts.map((each) => ({
    interruptId: each.id, status: "resolved", payload: given.decide,
  }));
  await run({ runId: `${given.run}-decided`, resume });
}
say({ done: true, messages: agent.messages, interrupts: agent.pendingInterrupts });
