// A chat in the SDK's own way: `useChat`, its default transport, and an answer sent as soon as it is complete.
import { useId, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { useChat } from '@ai-sdk/react';
import {
  DefaultChatTransport,
  getToolName,
  isDataUIPart,
  isReasoningUIPart,
  isTextUIPart,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
} from 'ai';

const user = new URLSearchParams(location.search).get('user') || 'alice';
const transport = new DefaultChatTransport({ api: '/api/chat', headers: { 'x-demo-user': user } });

const WORDS = {
  'input-streaming': 'The call is being written.',
  'input-available': 'Called.',
  'approval-requested': 'Waits for approval.',
  'approval-responded': 'Answered, sent to the server.',
  'output-available': 'Done.',
  'output-denied': 'Denied. It did not run.',
  'output-error': 'Failed.',
};

const asText = (value) => (value === undefined ? '' : JSON.stringify(value, null, 2));

function Labelled({ label, value }) {
  return <><h3>{label}</h3><pre tabIndex={0}>{asText(value)}</pre></>;
}

function Decision({ name, onAnswer }) {
  const [reason, setReason] = useState('');
  const answer = (approved) => onAnswer(approved, reason.trim() || undefined);
  return (
    <form className="decision" aria-label={`Decision on ${name}`} onSubmit={(event) => event.preventDefault()}>
      <label>Reason (optional)<input value={reason} onChange={(event) => setReason(event.target.value)} /></label>
      <button type="button" onClick={() => answer(true)}>Approve</button>
      <button type="button" onClick={() => answer(false)}>Deny</button>
    </form>
  );
}

function ToolPart({ part, answer }) {
  const heading = useId();
  const name = getToolName(part);
  const { approval } = part;
  const asks = part.state === 'approval-requested' && !approval.isAutomatic;
  return (
    <section className="tool" data-state={part.state} aria-labelledby={heading}>
      <h2 id={heading}>Tool {name}</h2>
      <p className="state">{WORDS[part.state]}</p>
      <Labelled label="Input" value={part.input} />
      {approval?.requestReason && <p>Why it asks: {approval.requestReason}</p>}
      {approval?.descriptor !== undefined && <Labelled label="About the request" value={approval.descriptor} />}
      {approval?.approved !== undefined && (
        <p>{approval.approved ? 'Approved' : 'Denied'}{approval.isAutomatic ? ' by the policy' : ''}
          {approval.reason ? `: ${approval.reason}` : ''}</p>
      )}
      {part.state === 'output-available' && <Labelled label="Result" value={part.output} />}
      {part.state === 'output-error' && <p>{part.errorText}</p>}
      {asks && <Decision name={name} onAnswer={(approved, reason) => answer({ id: approval.id, approved, reason })} />}
    </section>
  );
}

function Part({ part, answer }) {
  if (isTextUIPart(part)) return <p>{part.text}</p>;
  if (isReasoningUIPart(part)) return <details><summary>Reasoning</summary><p>{part.text}</p></details>;
  if (isToolUIPart(part)) return <ToolPart part={part} answer={answer} />;
  if (isDataUIPart(part)) return <Labelled label={part.type} value={part.data} />;
  return null;
}

function Compose({ disabled, onSend }) {
  const [text, setText] = useState('');
  const submit = (event) => {
    event.preventDefault();
    if (disabled || !text.trim()) return;
    onSend(text);
    setText('');
  };
  return (
    <form className="compose" onSubmit={submit}>
      <label>Message<input value={text} onChange={(event) => setText(event.target.value)} /></label>
      <button type="submit" disabled={disabled}>Send</button>
    </form>
  );
}

function Page() {
  const { messages, sendMessage, addToolApprovalResponse, stop, status, error } = useChat({
    transport,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const busy = status === 'submitted' || status === 'streaming';
  return (
    <main>
      <h1>Chat as {user}</h1>
      <p>The agent is scripted: whatever you write, it asks to delete a file, and then says what came of it.</p>
      <div role="log" aria-label="Conversation" aria-busy={busy}>
        {messages.map((message) => (
          <article className="message" key={message.id}>
            <p className="speaker">{message.role === 'user' ? 'You' : 'Agent'}</p>
            {message.parts.map((part, place) => (
              <Part key={isToolUIPart(part) ? part.toolCallId : place} part={part} answer={addToolApprovalResponse} />
            ))}
          </article>
        ))}
      </div>
      <p role="status">{busy ? 'Working…' : 'Ready.'} {busy && <button type="button" onClick={stop}>Stop</button>}</p>
      {error && <p role="alert">{error.message || 'The request failed.'}</p>}
      <Compose disabled={busy} onSend={(text) => sendMessage({ text })} />
    </main>
  );
}

createRoot(document.getElementById('root')).render(<Page />);
