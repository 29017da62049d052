// Checks formats.json with nothing but Node's crypto and what SECURITY.md says. Prints the number of checks.
import { createHash, createHmac, hkdfSync } from "node:crypto";
import { readFileSync } from "node:fs";

const v = JSON.parse(readFileSync(process.argv[2], "utf8"));
let checks = 0;
const same = (what, actual, expected) => {
  if (actual !== expected) throw new Error(`${what}: ${actual} is not ${expected}`);
  checks += 1;
};
const bytes = (text) => Buffer.from(text, "utf8");
const sized = (...parts) => Buffer.concat(parts.flatMap((part) => {
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(part.length));
  return [length, part];
}));
const digest = (tag, data) => createHash("sha256").update(bytes(`hitl-guard/${tag}/v1\0`)).update(data);
const derive = (purpose) => Buffer.from(
  hkdfSync("sha256", Buffer.from(v.key.secret, "base64url"), Buffer.alloc(0), bytes(`hitl-guard/v1/${purpose}`), 32));
const mac = (purpose, message) =>
  createHmac("sha256", derive(purpose)).update(bytes(`hitl-guard/v1/${purpose}\0`)).update(message).digest();
// RFC 8785 for what stands in signed texts: strings, safe integers, booleans, null.
const canonical = (x) => Array.isArray(x) ? `[${x.map(canonical).join(",")}]`
  : x !== null && typeof x === "object"
    ? `{${Object.keys(x).sort().map((k) => `${JSON.stringify(k)}:${canonical(x[k])}`).join(",")}}` : JSON.stringify(x);

const { call, event } = v;
same("fingerprint", digest("fingerprint", bytes(`[${JSON.stringify(call.tool)},${call.canonical}]`)).digest("hex"), call.fingerprint);
same("tool digest", digest("tool", bytes(v.tool_definition.canonical)).digest("hex"), v.tool_definition.digest);
const sources = v.policy.sources.map((s) => createHash("sha256").update(bytes(s)).digest("hex"));
same("policy", digest("policy", bytes(canonical([sources, v.policy.code]))).digest("hex"), v.policy.version);
same("details", digest("details", bytes(v.details.canonical)).digest("hex"), v.details.digest);

const payloads = v.signed_texts.map(({ purpose, text }) => {
  const [payload, tag] = text.split(".");
  const raw = Buffer.from(payload, "base64url");
  same(`${purpose} spelling`, raw.toString("base64url"), payload);
  same(`${purpose} mac`, mac(purpose, raw).toString("base64url"), tag);
  const fields = JSON.parse(raw.toString("utf8"));
  same(`${purpose} canonical`, canonical(fields), raw.toString("utf8"));
  same(`${purpose} key`, `${fields.alg} ${fields.kid} ${fields.v} ${fields.epoch}`, `HS256 ${v.key.id} 1 ${v.key.epoch}`);
  return fields;
});
const [request, decision] = payloads;
same("request fingerprint", request.fingerprint, call.fingerprint);
same("request details", request.details, v.details.digest);
same("decision is about the request", `${decision.request} ${decision.fingerprint}`, `${request.request} ${request.fingerprint}`);

const s = request.scope;
const identity = digest("identity", sized(...["call", s.tenant, s.user, s.run, s.call_id, String(s.occurrence)].map(bytes))).digest();
same("identity", identity.toString("hex"), call.identity);
same("spend key", digest("spend", sized(bytes("call"), identity)).digest("hex"), call.spend_key);
same("idempotency key",
  digest("idempotency", sized(...[s.tenant, request.request, call.fingerprint].map(bytes))).digest("base64url"), call.idempotency_key);
same("record digest",
  digest("record", sized(...[v.signed_texts[0].text, call.canonical, v.details.canonical].map(bytes))).digest("hex"), v.record_digest);
same("event names the record", JSON.parse(event.body).request, v.record_digest);
const header = canonical(["hitl-event", 1, "HS256", event.kid, event.epoch, event.chain, event.seq, event.previous, event.type,
  event.tenant, event.at, event.request_id, event.version, event.spend_key]);
same("event mac", mac("event", sized(bytes(header), bytes(event.body))).toString("hex"), event.mac);
console.log(checks);
