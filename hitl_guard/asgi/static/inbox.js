// The inbox's one script. Pages work without it. It writes text through textContent alone, never markup.
"use strict";

const body = document.body;
const base = body.dataset.base;
const page = body.dataset.page;
const skew = Number(body.dataset.now) - Date.now();  // the database's clock decides, not this device's
const find = (selector, root = document) => root.querySelector(selector);
const every = (selector, root = document) => [...root.querySelectorAll(selector)];

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

document.documentElement.classList.add("scripted");

// -- time ---------------------------------------------------------------------------------------------------------

function span(milliseconds) {
  const seconds = Math.floor(milliseconds / 1000);
  const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"], [seconds % 60, "s"]];
  const first = parts.findIndex(([number]) => number);
  return first < 0 ? "0 s" : parts.slice(first, first + 2).map(([number, unit]) => `${number} ${unit}`).join(" ");
}

const zone = new Intl.DateTimeFormat(undefined, {dateStyle: "medium", timeStyle: "long"});

function tick() {
  const now = Date.now() + skew;
  for (const one of every("time.left")) {
    const left = Number(one.dataset.until) - now;
    one.textContent = left > 0 ? `${span(left)} left` : "no time left";
    one.classList.toggle("soon", left < 300000);
  }
  for (const one of every("time.ago")) one.textContent = `${span(Math.max(0, now - Number(one.dataset.since)))} ago`;
  for (const one of every("time[data-at], time[data-until], time[data-since]")) {
    if (one.dataset.local) continue;
    one.dataset.local = "yes";
    const local = zone.format(new Date(Number(one.dataset.at || one.dataset.until || one.dataset.since)));
    one.title = one.title ? `${one.title} (${local})` : local;
    if (one.dataset.at) one.after(make("span", ` (${local})`, {class: "hint"}));
  }
}

tick();
setInterval(tick, 1000);

// -- what must have been seen before Approve ----------------------------------------------------------------------

const approve = find("button.gated");
const gate = find("#gate");
const doubts = new Set();  // why Approve is off
let awaited = false;  // whether the focus goes to Approve as soon as it is on

// What was shown whole in this tab, with the server's proof that it was opened; bulk approval hands the proofs in.
const seen = JSON.parse(sessionStorage.getItem("hitl-guard-seen") || "{}");

function remember() {
  if (!body.dataset.seen) return;
  seen[body.dataset.id] = body.dataset.seen;
  sessionStorage.setItem("hitl-guard-seen", JSON.stringify(Object.fromEntries(Object.entries(seen).slice(-200))));
}

function settle() {
  if (!approve) return;
  approve.disabled = doubts.size > 0;
  if (!doubts.size) remember();
  const folds = every(".folded").length;
  const reasons = [];
  if (doubts.has("digest")) reasons.push("what is shown is not what was signed");
  if (doubts.has("folds")) reasons.push(`open the ${folds === 1 ? "folded value" : `${folds} folded values`}`);
  if (doubts.has("end")) reasons.push("look at the arguments to their end");
  if (doubts.has("passkey")) reasons.push("this browser has no passkeys");
  if (doubts.has("changed")) reasons.push("load the page again, the request has changed");
  if (awaited && !approve.disabled) {
    awaited = false;
    if (document.activeElement === body || document.activeElement.matches("[data-end]")) approve.focus();
  }
  gate.textContent = reasons.length ? `Approve is off: ${reasons.join("; ")}.` : "";
}

function fold(value) {
  value.classList.add("folded");
  doubts.add("folds");
  const button = make("button", `Show all ${value.dataset.long} characters`, {type: "button", class: "unfold"});
  button.addEventListener("click", () => {
    value.classList.remove("folded");
    value.tabIndex = -1;
    value.focus();
    button.remove();
    if (!find("#arguments .folded")) watchEnd();
    settle();
  });
  value.after(button);
}

// The end counts when everything above it is open: a fold that is opened moves it away.
function watchEnd() {
  doubts.delete("folds");
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    doubts.delete("end");
    settle();
  }).observe(find("[data-end]"));
}

if (approve) {
  doubts.add("end");
  every("#arguments [data-long]").forEach(fold);
  if (!doubts.has("folds")) watchEnd();
  settle();
}

// -- what is shown is what was signed -----------------------------------------------------------------------------

// Back from what a person sees to the canonical text: white space between tokens goes, and every text gets RFC 8785's
// own spelling, which is that of JSON.stringify.
function canonicalText(shown) {
  let text = "";
  let end = 0;
  for (const token of shown.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g)) {
    if (/\S/.test(shown.slice(end, token.index))) throw new Error("not JSON");
    text += token[0][0] === '"' ? JSON.stringify(JSON.parse(token[0])) : token[0];
    end = token.index + token[0].length;
  }
  if (/\S/.test(shown.slice(end))) throw new Error("not JSON");
  return text;
}

// The text of an element, without the buttons that this script put among the values.
function textOf(element) {
  const copy = element.cloneNode(true);
  for (const button of every(".unfold", copy)) button.remove();
  return copy.textContent;
}

async function fingerprintOf(tool, shown) {
  const name = JSON.parse(`"${tool.replaceAll('"', '\\"')}"`);
  const signed = `hitl-guard/fingerprint/v1\0[${JSON.stringify(name)},${canonicalText(shown)}]`;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(signed));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function checkDigest() {
  const shown = find("#arguments[data-fingerprint]");
  const said = find("#digest");
  if (!shown || !said) return;
  said.hidden = false;
  if (find(".mask", shown)) {
    said.textContent = "Not compared with what was signed: secret values are masked. Reveal them to compare.";
    return;
  }
  if (!window.isSecureContext) {
    said.textContent = "Not compared with what was signed: a browser does that over HTTPS only.";
    return;
  }
  doubts.add("digest");
  try {
    const tool = find("#tool").textContent;
    // The page lays the call out, prints its raw text and posts a fingerprint: all must say the same.
    const found = [await fingerprintOf(tool, textOf(shown)), await fingerprintOf(tool, textOf(find("#raw")))];
    const told = [shown.dataset.fingerprint, find("#fingerprint").textContent,
      ...every('input[name="fingerprint"]').map((input) => input.value)];
    if ([...found, ...told].every((one) => one === found[0])) doubts.delete("digest");
  } catch {
    // What cannot be read is not what was signed.
  }
  const wrong = doubts.has("digest");
  said.className = wrong ? "alarm" : "check-state same";
  said.textContent = wrong
    ? "Alarm: what this page shows is not what was signed. Do not approve; tell your operators."
    : "What you see is what was signed: this browser has compared it with the fingerprint.";
  settle();
}

checkDigest();

// -- the list -----------------------------------------------------------------------------------------------------

function picked() {
  return every(".row input[name=pick]:checked").map((box) => box.closest(".row"));
}

function allowBulk() {
  const button = find("#bulk-approve");
  if (!button) return;
  const rows = picked();
  const single = rows.filter((row) => row.dataset.single);
  const unseen = rows.filter((row) => !seen[row.dataset.id]);
  button.hidden = false;
  button.disabled = !rows.length || single.length > 0 || unseen.length > 0;
  const hint = find("#bulk-hint");
  hint.hidden = false;  // it keeps its room, so that no row moves when a box is ticked
  hint.textContent = !rows.length || !button.disabled ? "" : single.length ? "Some of these need more than one person or a passkey: approve them one by one."
    : "Only what you opened in this tab can be approved together: open the others first.";
}

const bulk = find("#bulk");
if (bulk) {
  bulk.addEventListener("change", allowBulk);
  bulk.addEventListener("formdata", (event) => {
    for (const row of picked()) if (seen[row.dataset.id]) event.formData.append("seen", seen[row.dataset.id]);
  });
  allowBulk();
}

let current = null;

function move(step) {
  const rows = every(".row");
  if (!rows.length) return;
  const at = rows.indexOf(current && current.isConnected ? current : null);
  current = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  find("h2 a", current).focus();
}

document.addEventListener("focusin", (event) => { current = event.target.closest?.(".row") || current; });

// -- live ---------------------------------------------------------------------------------------------------------

const live = find("#live");
let fresh = 0;
let loading = false;
let wanted = false;

function tell(text, action, run) {
  live.replaceChildren(make("span", text));
  if (!action) return;
  const button = make("button", action, {type: "button"});
  button.addEventListener("click", run);
  live.append(button);
}

// The same page once more, as a document: its rows come from the server's one template. Nothing in it runs.
function load(address) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.onload = () => (request.status === 200 && request.response ? done(request.response) : failed());
    request.onerror = failed;
    request.send();
  });
}

// Rows change where they are. New ones come to the end, so that nothing moves under a finger or the mouse.
function merge(other) {
  const list = find("#requests");
  const held = document.activeElement;
  for (const row of every("#requests > .row", other)) {
    const mine = list.querySelector(`[data-id="${CSS.escape(row.dataset.id)}"]`);
    if (mine && mine.dataset.version === row.dataset.version && mine.dataset.state === row.dataset.state) continue;
    const copy = document.importNode(row, true);
    copy.classList.add("fresh");
    if (mine) {
      const box = find("input[name=pick]", copy);
      if (box && find("input[name=pick]", mine)?.checked) box.checked = true;
      const focused = mine.contains(held);
      mine.replaceWith(copy);
      if (focused) find("h2 a", copy).focus();
    } else {
      list.append(copy);
      find(".empty")?.remove();
      fresh += 1;
    }
  }
  const there = new Set(every("#requests > .row", other).map((row) => row.dataset.id));
  const gone = every("#requests > .row").filter((row) => !there.has(row.dataset.id));
  if (!find("#next-page", other)) for (const row of gone) retire(row);
  document.title = other.title;
  tick();
  allowBulk();
  if (fresh) tell(`${fresh} new, at the end of the list`, "Sort by urgency", () => location.reload());
}

// What no longer fits the filter stays in its place, without a box to tick, until the page is loaded again.
function retire(row) {
  if (row.dataset.state === "gone") return;
  row.dataset.state = "gone";
  const state = find(".state", row);
  state.className = "state";
  state.textContent = "no longer in this list";
  find(".pick", row).replaceChildren();
}

async function refresh() {
  wanted = true;
  if (loading) return;
  loading = true;
  while (wanted) {
    wanted = false;
    try {
      merge(await load(location.href));
    } catch {
      tell("The list cannot be refreshed.", "Load it again", () => location.reload());
    }
    await new Promise((done) => setTimeout(done, 500));
  }
  loading = false;
}

function changed() {
  doubts.add("changed");
  settle();
  tell("This request has changed since it was loaded.", "Load it again", () => location.reload());
}

// Events may have been missed: ask whether this request is still what the page shows.
async function compare() {
  try {
    const answer = await fetch(`${base}/api/requests/${body.dataset.id}`);
    if (!answer.ok || (await answer.json()).version > Number(body.dataset.version)) changed();
  } catch {
    // The server cannot be reached; it refuses what is out of date.
  }
}

if (page === "list" || page === "request") {
  const stream = new EventSource(`${base}/api/events?since=${body.dataset.now}`);
  const handle = (event) => {
    if (page === "list") { refresh(); return; }
    const told = JSON.parse(event.data);
    if (told.request === body.dataset.id && told.version > Number(body.dataset.version)) changed();
  };
  stream.addEventListener("change", handle);
  stream.addEventListener("reset", () => (page === "list" ? refresh() : compare()));
  stream.addEventListener("open", () => body.setAttribute("data-live", "yes"));
  addEventListener("pagehide", () => stream.close());
}

// -- passkeys -----------------------------------------------------------------------------------------------------

async function post(path, data, method = "POST") {
  const answer = await fetch(`${base}/${path}`, {
    method, headers: {"content-type": "application/json", "x-csrf-token": body.dataset.token}, body: data,
  });
  const text = await answer.text();
  const found = text ? JSON.parse(text) : {};
  if (!answer.ok) throw new Error(found.detail || found.title || "This did not work.");
  return found;
}

function alarm(text) {
  let box = find("#script-error");
  if (!box) {
    box = make("div", "", {id: "script-error", class: "error", role: "alert", tabindex: "-1"});
    (find(".decide") || find("#main")).prepend(box);
  }
  box.textContent = text;
  box.focus();
}

// Arguments travel as the text that the server gave: a number would lose digits here.
function ballot(form, kind) {
  const value = (name) => form.elements[name]?.value || null;
  const parts = [["approve", kind === "approve" || kind === "edit"], ["fingerprint", value("fingerprint")],
    ["reason", value("reason")]].map(([name, one]) => `${JSON.stringify(name)}:${JSON.stringify(one)}`);
  const within = value("within");
  if (within) parts.push(`"execute_within":${Math.round(Number(within) * 60000)}`);
  if (value("mute")) parts.push(`"mute":${Math.round(Number(value("mute")) * 60000)}`);
  if (kind === "edit") parts.push(`"arguments":${form.dataset.arguments}`);
  if (kind === "respond") {
    const response = form.elements.response.value;
    parts.push(`"respond":${value("as") === "json" ? response : JSON.stringify(response)}`);
  }
  return parts.join(",");
}

async function signed(options) {
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(options);
  return (await navigator.credentials.get({publicKey})).toJSON();
}

async function decideByPasskey(form) {
  const id = encodeURIComponent(body.dataset.id);
  const said = ballot(form, form.dataset.passkey);
  const challenge = await post(`api/requests/${id}/challenge`, `{${said}}`);
  const evidence = JSON.stringify({ticket: challenge.ticket, response: await signed(challenge.options)});
  const decision = await post(`api/requests/${id}/decision`, `{${said},"evidence":${evidence}}`);
  location.assign(`${base}/requests/${encodeURIComponent(decision.request_id)}?done=decided`);
}

const able = window.isSecureContext && typeof PublicKeyCredential === "function"
  && typeof PublicKeyCredential.parseRequestOptionsFromJSON === "function";

for (const form of every("form[data-passkey]")) {
  if (!able) {
    if (form.contains(approve)) doubts.add("passkey");
    continue;
  }
  const button = find("[data-needs-script]", form);
  if (button !== approve) button.disabled = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await decideByPasskey(form);
    } catch (error) {
      alarm(error.message);
      button.disabled = false;
      settle();
    }
  });
}
settle();

const register = find("#register");
if (register && able) {
  find("button", register).disabled = false;
  register.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const made = await post("api/passkeys/options", "{}");
      const confirm = made.confirm && await signed(made.confirm);
      const options = PublicKeyCredential.parseCreationOptionsFromJSON(made.options);
      const credential = await navigator.credentials.create({publicKey: options});
      await post("api/passkeys", JSON.stringify({
        ticket: made.ticket, response: credential.toJSON(), name: register.elements.name.value, confirm,
      }));
      location.assign(`${base}/passkeys?done=registered`);
    } catch (error) {
      alarm(error.message);
    }
  });
}

// -- keyboard -----------------------------------------------------------------------------------------------------

const help = find("#help");
const keysOn = find("#keys-on");
keysOn.checked = localStorage.getItem("hitl-guard-keys") !== "off";
keysOn.addEventListener("change", () => localStorage.setItem("hitl-guard-keys", keysOn.checked ? "on" : "off"));
find("#help-open").hidden = false;
find("#help-open").addEventListener("click", () => help.showModal());
find("#help-close").addEventListener("click", () => help.close());

function open(hash) {
  if (current?.isConnected) location.assign(find("h2 a", current).href + hash);
}

function focus(selector) {
  const element = find(selector);
  if (!element) return;
  const outer = element.closest("details");
  if (outer) outer.open = true;
  // A button that is off cannot take the focus: what it waits for can.
  awaited = element === approve && element.disabled;
  const target = awaited ? find(".unfold") || find("[data-end]") : element;
  if (target.matches("[data-end]")) target.tabIndex = -1;
  target.focus();
}

const firstField = "#edit-form select, #edit-form input:not([type=hidden]), #edit-form textarea";
const keys = {
  j: () => move(1), k: () => move(-1),
  a: () => (page === "list" ? open("#to-approve") : focus("#approve")),
  r: () => (page === "list" ? open("#to-deny") : focus("#deny-reason")),
  e: () => (page === "list" ? open("#to-edit") : focus(firstField)),
  x: () => {
    const box = current?.isConnected && find("input[name=pick]", current);
    if (box) box.click();
  },
  "/": () => focus("#search"),
  "?": () => help.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || help.open) return;
  const typing = event.target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (page !== "list") location.assign(`${base}/`);
    return;
  }
  const run = !typing && keysOn.checked && keys[event.key.toLowerCase()];
  if (!run || event.repeat && event.key !== "j" && event.key !== "k") return;
  event.preventDefault();
  run();
});

// -- focus --------------------------------------------------------------------------------------------------------

const spoken = find("#error") || find("#notice");
if (spoken) spoken.focus();
else if (page === "request" && location.hash === "#to-approve") focus("#approve");
else if (page === "request" && location.hash === "#to-deny") focus("#deny-reason");
else if (page === "request" && location.hash === "#to-edit") focus(firstField);
