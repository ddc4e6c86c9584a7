"use strict";
/* What a page does by itself: it follows what happens, shows answers while they are made, and obeys the keyboard.
   Whatever comes from a model becomes text nodes, never HTML. */

const root = document.documentElement;
const kept = (() => { try { return localStorage; } catch { return { getItem: () => null, setItem: () => {} }; } })();
if (kept.getItem("theme")) root.dataset.theme = kept.getItem("theme");

function switchTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
  kept.setItem("theme", root.dataset.theme);
}

/* --- Following ------------------------------------------------------------------------------------------------ */

let waiting = 0;
function changed() {
  if (!waiting) waiting = setTimeout(() => { waiting = 0; document.body.dispatchEvent(new Event("changed")); }, 120);
}

const live = {
  attempt: null,   // the list item that an answer in the making is written to
  parts: new Map(),
  write(piece) {
    const place = document.getElementById("live");
    if (!place) return;
    if (!this.attempt) {
      this.attempt = document.createElement("li");
      this.attempt.className = "entry agent";
      place.append(this.attempt);
      this.parts.clear();
    }
    let part = this.parts.get(piece.part);
    if (!part) {
      part = document.createElement(piece.kind === "text" ? "div" : "p");
      part.className = piece.kind === "text" ? "bubble" : "soft";
      if (piece.tool) part.append("calls ", piece.tool);
      if (piece.kind === "thinking") part.append("thinking … ");
      this.parts.set(piece.part, part);
      this.attempt.append(part);
    }
    if (piece.kind === "text") {
      const low = innerHeight + scrollY > document.body.scrollHeight - 160;
      part.append(piece.delta || "");
      this.attempt.querySelectorAll(".caret").forEach((each) => each.classList.remove("caret"));
      part.classList.add("caret");
      if (low) scrollTo(0, document.body.scrollHeight);
    }
  },
  reset() {
    if (!this.attempt) return;
    const again = document.createElement("li");
    again.className = "again";
    again.dataset.settled = this.attempt.dataset.settled || "";
    again.append("interrupted; the answer begins anew");
    this.attempt.replaceWith(again);
    this.attempt = null;
  },
  settle(seq) {  // it is on record now: what the server shows takes its place
    for (const each of document.querySelectorAll("#live > li")) if (!each.dataset.settled) each.dataset.settled = seq;
    this.attempt = null;
  },
  sweep() {
    const tab = document.getElementById("tab");
    const seen = Number(tab && tab.dataset.seq);
    for (const each of document.querySelectorAll("#live > li[data-settled]"))
      if (each.dataset.settled && Number(each.dataset.settled) <= seen) each.remove();
  },
};

const KINDS = ["token", "reset", "changed", "task.accepted", "task.started", "task.resumed", "task.finished", "task.failed",
  "task.waited", "task.cancelled", "task.dead", "task.discarded", "task.retried", "task.held", "task.paused", "task.stalled",
  "task.stopping", "task.interrupted", "task.isolated", "task.acquitted", "task.handed_over", "model.responded", "model.failed",
  "tool.started", "tool.finished", "effect.doubted", "worker.died", "worker.stopped", "restart.noticed", "notice.acknowledged", "notice.delivered", "notice.undelivered",
  "approval.requested", "approval.given", "approval.denied", "approval.expired", "approval.honoured", "question.answered", "context.compacted",
  "coherence.lost", "handoff.written", "decision.made", "workspace.saved", "steer.accepted", "steer.delivered", "person.spoke",
  "session.taken", "session.paused", "session.resumed", "session.reopened", "session.given_back", "session.closed", "session.forked", "session.branched",
  "session.rewound", "session.made", "session.imported", "breaker.tried", "breaker.opened", "breaker.closed", "alert.raised"];
const SETTLING = ["model.responded", "model.failed", "task.finished", "task.failed", "task.cancelled", "task.waited", "task.dead"];

function follow(address, place) {
  const pulse = document.getElementById("pulse");
  let last = place;
  let source;
  function open() {
    source = new EventSource(last === null ? address : `${address}?after=${encodeURIComponent(last)}`);
    source.onopen = () => { pulse.dataset.state = "live"; pulse.lastElementChild.textContent = "live"; changed(); };
    source.onerror = () => {
      pulse.dataset.state = "lost";
      pulse.lastElementChild.textContent = "reconnecting";
      // A browser goes on by itself after a lost connection, but gives up after an answer it does not like.
      if (source.readyState === EventSource.CLOSED) setTimeout(open, 1000);
    };
    for (const kind of KINDS) source.addEventListener(kind, hear);
  }
  function hear(event) {
    if (event.lastEventId) last = event.lastEventId;
    if (event.type === "token") return live.write(JSON.parse(event.data).data);
    if (event.type === "reset") return live.reset();
    if (SETTLING.includes(event.type)) live.settle(JSON.parse(event.data).seq);
    changed();
  }
  open();
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
}

/* --- Keyboard ------------------------------------------------------------------------------------------------- */

let before = "";
const isTyping = (element) => element.matches("input, textarea, select, [contenteditable]");

function move(step) {
  const items = [...document.querySelectorAll("[data-item]")];
  const at = items.findIndex((each) => each.classList.contains("at"));
  const next = items[Math.min(items.length - 1, Math.max(0, at < 0 ? (step > 0 ? 0 : items.length - 1) : at + step))];
  items.forEach((each) => each.classList.toggle("at", each === next));
  if (next) next.scrollIntoView({ block: "nearest" });
}

function press(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey || !event.shiftKey) && event.target.matches("[data-send]")) {
    event.preventDefault();
    return event.target.form.requestSubmit();
  }
  if (event.key === "Escape") { if (isTyping(event.target)) event.target.blur(); return dismiss(); }
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  const pair = before + event.key;
  before = "";
  const tabs = document.querySelectorAll(".tabs a");
  if (pair === "gs") location.href = "/";
  else if (pair === "gw") location.href = "/workers";
  else if (event.key === "g") { before = "g"; return; }
  else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  else if (event.key === "/") (document.getElementById("search") || document.getElementById("message"))?.focus();
  else if (event.key === "?") document.getElementById("help").showModal();
  else if (event.key === "d") switchTheme();
  else if (event.key >= "1" && event.key <= "4" && tabs.length) location.href = tabs[event.key - 1].href;
  else if (event.key === "Enter" && document.querySelector(".at") && event.target === document.body) {
    const item = document.querySelector(".at");
    (item.querySelector("a.row, summary, textarea, input:not([type=hidden]), a") || item).click();
    item.querySelector("textarea, input:not([type=hidden])")?.focus();
  } else return;
  event.preventDefault();
}

function dismiss() {
  document.getElementById("told").replaceChildren();
  document.querySelectorAll("details.new[open]").forEach((each) => { each.open = false; });
}

/* --- Everything else ------------------------------------------------------------------------------------------ */

addEventListener("DOMContentLoaded", () => {
  const { session, after, live: ringing } = document.body.dataset;
  if (session !== undefined) follow(`/v1/sessions/${session}/events`, after);
  else if (ringing) follow(ringing, null);
  document.getElementById("theme").onclick = switchTheme;
  document.getElementById("help-button").onclick = () => document.getElementById("help").showModal();
  if (document.getElementById("composer")) scrollTo(0, document.body.scrollHeight);
});
addEventListener("keydown", press);
addEventListener("click", (event) => {
  if (event.target.closest("[data-dismiss]")) dismiss();
  for (const each of document.querySelectorAll("details.new[open]")) if (!each.contains(event.target)) each.open = false;
});
addEventListener("change", (event) => { if (event.target.matches("[data-submit]")) event.target.form.submit(); });

let fading = 0;
let isLow = false;
addEventListener("htmx:before:swap", () => { isLow = innerHeight + scrollY > document.body.scrollHeight - 160; });
addEventListener("htmx:after:swap", () => {
  live.sweep();
  if (isLow && document.getElementById("composer")) scrollTo(0, document.body.scrollHeight);
  const toast = document.querySelector("#told [data-toast]");
  clearTimeout(fading);
  if (toast) fading = setTimeout(() => toast.remove(), toast.matches(".problem") ? 12000 : 5000);
});
addEventListener("htmx:after:request", (event) => {
  const { ctx } = event.detail || {};
  const form = ctx && ctx.sourceElement;
  if (!form || !form.matches || !form.matches("form") || !ctx.response || ctx.response.status >= 400) return;
  if (form.matches("[data-clear]")) form.reset();
  if (form.matches("[data-reload]")) setTimeout(() => location.reload(), 300);
  form.closest("details.new")?.removeAttribute("open");
  changed();
});
