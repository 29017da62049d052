// Passkeys: a decision that one signs, and a new one. Runs after inbox.js, whose names it uses.
"use strict";

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
  location.assign(`${base}/requests/${encodeURIComponent(decision.request_id)}?done=yes`);
}

const able = window.isSecureContext && typeof PublicKeyCredential === "function"
  && typeof PublicKeyCredential.parseRequestOptionsFromJSON === "function";

for (const form of every("form[data-passkey]")) {
  if (!able) {
    if (form.contains(approve)) doubts.add("passkey");
    continue;
  }
  const button = find("[data-needs-script]", form) || find("button", form);
  if (button !== approve) button.disabled = false;
  form.addEventListener("submit", async (event) => {
    if (form.dataset.passkey === "deny" && !form.elements.mute.value) return; // a plain denial needs none
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
