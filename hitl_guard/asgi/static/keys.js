// Single keys, and where the focus goes first. Runs last; it uses the names of the scripts before it.
"use strict";

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
