// The AI SDK's chat client, driven by JSON lines: a command on stdin, its answer with the chat's state on stdout.
//
// Nothing of the client is replaced: `Chat` is the class behind `useChat`, with its default transport. Only `fetch` is
// wrapped, to note what goes over the wire and to stop a client that posts without end.
import { createInterface } from 'node:readline';
import { Chat } from '@ai-sdk/react';
import {
  DefaultChatTransport,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
} from 'ai';

const MOST_POSTS = 50;
const QUIET_TURNS = 3;

const turn = () => new Promise((resolve) => setImmediate(resolve));
const pause = () => new Promise((resolve) => setTimeout(resolve, 2));

let api;
let chat;
let headers = {};
let exchanges = [];
let endings = [];
let asking = 0;
let streaming = 0;
let failure = null;

async function watchedFetch(url, init) {
  const post = init.method === 'POST';
  if (post && exchanges.filter((one) => one.method === 'POST').length >= MOST_POSTS) {
    throw new Error(`The client posted ${MOST_POSTS} times and wants to post again.`);
  }
  const exchange = { method: init.method, body: post ? JSON.parse(init.body) : null, status: null, headers: {}, text: '' };
  exchanges.push(exchange);
  asking += 1;
  try {
    return await noting(exchange, await fetch(url, init));
  } finally {
    asking -= 1;
  }
}

async function noting(exchange, response) {
  exchange.status = response.status;
  exchange.headers = Object.fromEntries(response.headers);
  if (response.body === null) return response;
  if (!response.ok) {
    exchange.text = await response.text();
    return new Response(exchange.text, response);
  }
  // An answer that is given up before its end counts for ever: its connection may still be open.
  streaming += 1;
  const decoder = new TextDecoder();
  const noted = response.body.pipeThrough(new TransformStream({
    transform(bytes, controller) {
      exchange.text += decoder.decode(bytes, { stream: true });
      controller.enqueue(bytes);
    },
    flush() { streaming -= 1; },
  }));
  return new Response(noted, response);
}

// A client that resumes a stream is still "ready" while it asks for it.
const isBusy = () => asking > 0 || chat.status === 'submitted' || chat.status === 'streaming';

// An answer is followed by an automatic request only within the promises that it has already started, and those run
// before the next turn of the event loop. So a chat that stays quiet for some turns sends nothing more by itself.
async function settled() {
  for (let quiet = 0; quiet < QUIET_TURNS;) {
    if (isBusy()) {
      quiet = 0;
      await pause();
    } else {
      quiet += 1;
      await turn();
    }
  }
}

const states = () => chat.messages.flatMap((message) => message.parts.filter(isToolUIPart).map((part) => part.state));

async function reached(state) {
  while (chat.status !== state && !states().includes(state)) {
    if (!isBusy()) {
      await settled();
      if (chat.status !== state && !states().includes(state)) throw new Error(`The chat settled without ${state}.`);
    } else {
      await pause();
    }
  }
}

// What the SDK rejects, and does not keep as the chat's error, is told once, with the next answer.
const started = (promise) => void Promise.resolve(promise).catch((error) => { failure = String(error); });

function failed() {
  const told = failure;
  failure = null;
  return told;
}

const commands = {
  open({ api: address, id, headers: given, messages }) {
    api = address;
    headers = given;
    exchanges = [];
    endings = [];
    failure = null;
    chat = new Chat({
      id,
      messages,
      transport: new DefaultChatTransport({ api, headers: () => headers, fetch: watchedFetch }),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
      onFinish: ({ isAbort, isDisconnect, isError, finishReason }) =>
        endings.push({ isAbort, isDisconnect, isError, finishReason: finishReason ?? null }),
    });
  },
  headers({ headers: given }) { headers = given; },
  send({ text }) { started(chat.sendMessage({ text })); },
  // Without a message: the client sends the answers that it has, as after a reload of the page.
  continue() { started(chat.sendMessage()); },
  regenerate() { started(chat.regenerate()); },
  respond({ response }) { started(chat.addToolApprovalResponse(response)); },
  set({ messages }) { chat.messages = messages; },
  stop() { started(chat.stop()); },
  resume() { started(chat.resumeStream()); },
  state() {},
  // Whether nothing is left over of this process's chats that could meddle with the next one.
  idle: () => !isBusy() && streaming === 0,
  settled,
  reached: ({ state }) => reached(state),
  async raw({ text, headers: given }) {
    const response = await fetch(api, { method: 'POST', headers: { 'content-type': 'application/json', ...given }, body: text });
    return { status: response.status, headers: Object.fromEntries(response.headers), text: await response.text() };
  },
};

function state() {
  if (chat === undefined) return null;
  const { id, status, error, messages } = chat;
  const told = error && { name: error.name, message: error.message, statusCode: error.statusCode ?? null };
  return { id, status, error: told ?? null, messages, exchanges, endings, failure: failed() };
}

const answer = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

async function obey(line) {
  const { number, command, ...options } = JSON.parse(line);
  try {
    const result = await commands[command](options);
    answer({ number, result: result ?? null, chat: state() });
  } catch (error) {
    answer({ number, error: String(error), chat: state() });
  }
}

const input = createInterface({ input: process.stdin });
input.on('line', (line) => void obey(line));
input.on('close', () => process.exit(0));
