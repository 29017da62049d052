// The list, and what changes while a page is open. Runs after inbox.js, whose names it uses.
"use strict";

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
