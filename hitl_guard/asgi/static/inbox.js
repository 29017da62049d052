// What every page's scripts share, times, and what must have been seen before Approve. list.js, passkeys.js and keys.js
// follow, in this order. Pages work without them. They write text through textContent alone, never markup.
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
