// Puts live updates into the page, and sends forms without leaving it. Everything works without this script.
"use strict";
const policy = self.trustedTypes?.createPolicy("ralph", { createHTML: (html) => html }) ?? { createHTML: (html) => html };
const one = (selector) => document.querySelector(selector);
const MOST = 1000;
const later = new Map();   // updates of parts in which the user is typing or pressing a button
const skew = Date.now() / 1000 - document.body.dataset.now;   // the server's clock may differ from ours
let source, last = document.body.dataset.at ?? "", retry, silence, isPressed = false;

// ── pieces ──
function put(html) {
  const made = document.createElement("template");
  made.innerHTML = policy.createHTML(html);
  tick(made.content); tick();   // so that equal parts are equal nodes
  const stream = document.getElementById("stream"), end = stream?.getBoundingClientRect().bottom;
  for (const piece of [...made.content.children]) {
    const old = document.getElementById(piece.id);
    if (old) replace(old, piece);
    else if (piece.dataset.into) document.getElementById(piece.dataset.into)?.prepend(piece);
    else if (piece.classList.contains("iteration")) stream?.replaceChildren(piece);
    else stream?.append(piece);
  }
  while (stream?.childElementCount > MOST) stream.firstElementChild.remove();
  if (stream && end > 0 && end < innerHeight) scrollBy(0, Math.max(stream.getBoundingClientRect().bottom - end, 0));
}
function replace(old, piece) {
  if (old.isEqualNode(piece)) return later.delete(old.id);
  const place = (field) => field.id && piece.querySelector("#" + CSS.escape(field.id));
  const drafts = [...old.querySelectorAll("textarea, input:not([type=hidden])")].filter((each) => each.value !== each.defaultValue);
  const isTyping = old.contains(document.activeElement) && document.activeElement.matches("textarea, input, select");
  if (isPressed || isTyping || !drafts.every(place)) return later.set(old.id, piece);
  later.delete(old.id);   // a waiting update is older than this one
  for (const field of drafts) place(field).value = field.value;
  for (const open of [old, ...old.querySelectorAll("details[id]")].filter((each) => each.tagName === "DETAILS")) {
    const fresh = open.id === piece.id ? piece : piece.querySelector("#" + CSS.escape(open.id));
    if (fresh) fresh.open = open.open;
  }
  const left = old.querySelector(".scroll")?.scrollLeft;
  old.replaceWith(piece);
  if (left) piece.querySelector(".scroll")?.scrollTo({ left, behavior: "instant" });
}
function settle() {
  for (const [id, piece] of isPressed ? [] : [...later]) { later.delete(id); if (document.getElementById(id)) replace(document.getElementById(id), piece); }
}
addEventListener("focusout", () => setTimeout(settle));
addEventListener("pointerdown", (event) => { isPressed = event.button === 0; });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { isPressed = false; setTimeout(settle); });

// ── the stream: closed in hidden tabs, because browsers allow six connections per host ──
function listen() {
  const url = document.body.dataset.live;
  if (!url || source || document.hidden) return;
  source = new EventSource(url + (url.includes("?") ? "&" : "?") + "after=" + last);
  source.onopen = () => document.body.classList.remove("lost");
  source.onmessage = (message) => { last = message.lastEventId; put(message.data); };
  source.addEventListener("disconnect", disconnect);
  source.addEventListener("reload", () => location.reload());
  source.onerror = () => {
    document.body.classList.add("lost");
    if (source?.readyState !== EventSource.CLOSED) return;
    disconnect(); clearTimeout(retry); retry = setTimeout(listen, 3000);
  };
}
function disconnect() { source?.close(); source = undefined; }
document.addEventListener("visibilitychange", () => document.hidden ? disconnect() : listen());
addEventListener("focus", listen);
addEventListener("pagehide", disconnect);
addEventListener("pageshow", listen);

// ── forms ──
document.addEventListener("submit", async (event) => {
  const form = event.target, button = event.submitter;
  if (!form.matches("[data-quick]")) return;
  event.preventDefault();
  const body = new URLSearchParams(new FormData(form, button));
  if (button) button.disabled = true;
  try {
    const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/plain" } });
    say(await answer.text(), !answer.ok);
    if (answer.ok) {
      for (const field of form.elements) {   // an update may have replaced the form, with its draft
        const now = document.getElementById(field.id) ?? field;
        now.form?.reset();
        now.closest("details.ask")?.removeAttribute("open");
      }
      document.activeElement?.blur();
      settle();
    }
  } catch { say("Not sent: cannot reach the server.", true); }
  if (button) button.disabled = false;
});
function say(text, isBad) {
  const toast = one("#said");
  toast.textContent = text; toast.className = isBad ? "on bad" : "on";
  clearTimeout(silence); silence = setTimeout(() => { toast.className = ""; }, 6000);
}

// ── keys ──
const KEYS = {
  t: () => one("#tell")?.focus(), p: () => one("[data-key=p]")?.click(), r: () => one("[data-key=r]")?.click(),
  s: () => one("[data-key=s]")?.click(), d: () => one("[data-key=d]")?.click(),
  g: () => one(".logo")?.click(), j: () => step(1), k: () => step(-1),
  Escape: () => document.querySelectorAll("details.ask[open]").forEach((each) => each.removeAttribute("open")),
};
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("textarea, input, select"), isChord = event.ctrlKey || event.metaKey;
  if (isTyping && event.key === "Escape") event.target.blur();
  if (isTyping && event.key === "Enter" && isChord) event.target.form?.requestSubmit();
  if (isTyping || isChord || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
function step(by) {
  const all = [...document.querySelectorAll(".cover, .chapter > summary")];
  all[Math.min(Math.max(all.indexOf(document.activeElement) + by, 0), all.length - 1)]?.focus();
}

// ── clocks ──
function span(seconds) {
  const s = Math.max(0, Math.round(seconds)), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  if (h) return h + "h" + (m ? m + "m" : "");
  return m >= 10 ? m + "m" : m ? m + "m" + (s % 60 ? s % 60 + "s" : "") : s + "s";
}
function tick(root = document) {
  for (const clock of root.querySelectorAll("[data-since]")) clock.textContent = span(Date.now() / 1000 - skew - clock.dataset.since);
}
setInterval(() => tick(), 1000);
tick(); listen();
