"""`UIMessageStream`: what a loop does, as the chunks of the AI SDK's UI message stream, for any loop.

::

    stream = UIMessageStream()
    stream.text("t1", "I will refund it.")                     # each returns a list of chunks, to be sent in order
    stream.tool_call("call-1", "refund", {"order": "A-17"})
    stream.approval(request)                                   # the call waits
    stream.finish("tool-calls")

The order that the client needs is kept here: the message is started, steps and texts are opened and closed, a call is
shown before anything else is said of it, nothing of a call is said twice, and after the end nothing more is.
What the model wrote may be hostile: ids are made distinct, and values that the client's parser refuses become text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...agent.shapes import well_formed
from ...errors import ConfigurationError
from ...models import ApprovalRequest
from ...protocols.echo import alike
from ...render import quoted
from .asked import decided, descriptor_of, hidden, reason_of
from .message import MessageChunks, finish_reason
from .parts import UNKNOWN, Chunk, Part, call_chunks, is_inner, part_id, read_parts, usable
from .texts import CHANGED, CHANGED_BELOW
from .values import bounded, obstacle, sendable, text_of

__all__ = ["CHANGED", "Chunk", "UIMessageStream", "finish_reason", "part_id"]

class UIMessageStream(MessageChunks):
    """The chunks of one assistant message, or of one that goes on. Not for several threads.

    A call is named by its tool-call id. Where a provider gives several calls of one run equal ids, name them by
    `part_id` with their occurrence; an id that is used again after its call has ended is made distinct here.

    Args:
        known: Where a message goes on: all its parts, in order, as the client posted them. (Tool-call ids alone do,
            too, but then what the client holds of its approvals cannot be corrected.)

    Attributes:
        reason: With which finish reason `end` ends the message.
    """

    def __init__(self, *, known: Iterable[str | Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self._parts, data = read_parts(known)
        self._data |= data
        self._runs: dict[str, str] = {}

    def start_step(self) -> list[Chunk]:
        """Start a step: one turn of the model. How calls of earlier ones are shown can be changed no more."""
        for part in self._parts.values():
            part.fresh = False
        return super().start_step()

    # -- calls ---------------------------------------------------------------------------------------------------

    def tool_call(
        self, call_id: str, name: str, input: Any, *, dynamic: bool = False, title: str | None = None,
        quiet: bool = False,
    ) -> list[Chunk]:
        """Show a call; nothing if the client has it.

        Arguments that the client's parser would refuse are shown as text once the call has ended; until then the call
        is kept back. So nobody decides on other arguments than run.

        Args:
            input: The arguments: JSON data.
            dynamic: Whether nobody registered a definition for the tool. title: For people, in place of the name.
            quiet: Show it without the page's ``onToolCall``, by which a browser runs tools of its own: the call has
                ended, or may not run yet.
        """
        id_ = self._id(call_id)
        part = self._parts.get(id_)
        if part is not None and (part.ended or not self._same(part, name, input)):
            id_ = self._another(call_id)
            part = None
        if part is not None:
            return []
        shown = well_formed(name) or "unnamed"
        part = self._parts[id_] = Part(shown, input, dynamic, title=title, shown=False, ours=True)
        return self._shown(id_, part, quiet=quiet) if obstacle(input) is None else []

    def _same(self, part: Part, name: str, input: Any) -> bool:
        """Whether it is the call that is shown, or kept back. What the client had is: nothing is known of it."""
        return not part.ours or (part.name == (well_formed(name) or "unnamed") and alike(part.input, input))

    def runs_now(self, call_id: str, name: str, input: Any) -> list[Chunk]:
        """Show a call that the client itself is to run, now that it may: its ``onToolCall`` is told.

        An answer that the client holds is taken back: what it runs and says of it is its own word.
        """
        id_ = self._id(call_id)
        part = self._parts.get(id_)
        if part is None:
            return self.tool_call(call_id, name, input)
        if part.ended or not part.fresh or obstacle(input) is not None:
            return []
        chunks: list[Chunk] = []
        if type(part.approval_id) is str:
            chunks = self._asked(part, part.approval_id, {"approvalId": part.approval_id, "toolCallId": id_})
        part.name, part.input, part.moved = name, input, True
        return [*chunks, *self._shown(id_, part)]

    def approval(
        self, request: ApprovalRequest, *, call_id: str | None = None, descriptor: Mapping[str, Any] | None = None,
        note: str | None = None, dynamic: bool = False, quiet: bool = False,
    ) -> list[Chunk]:
        """Ask for a call that waits. Its signed arguments are shown, if the client does not have exactly these.

        Arguments that cannot be shown as they are are not offered: a text and a data part ``data-tool-call-approval``
        say that the inbox decides.

        Args:
            request: As the guard verified it. Its token travels as ``signature``; both come back with the answer.
            call_id: The call as it was shown, where that is not by the request's own tool-call id.
            descriptor: More for the page than who decides, how many, until when, and the fingerprint (JSON data).
            note: One more sentence for the person, after the request's reason.
            dynamic: As in `tool_call`.
            quiet: As in `tool_call`: for a tool that the client runs itself.
        """
        id_ = self._place(request, call_id)
        part = self._parts.get(id_) or Part(request.tool, request.arguments, dynamic, shown=False, ours=True)
        if part.ended and part.approval_id != request.id:
            return self._for_the_inbox(id_, part, request, "its place in this message is taken")
        if part.ended or (part.waiting and part.approval_id == request.id):
            return []
        self._parts[id_] = part
        why, had = hidden(request), part.shown
        chunks = None if why is not None else self._showing(id_, part, request, quiet=quiet)
        if chunks is None:
            return self._for_the_inbox(id_, part, request, why or "its arguments cannot be shown any more")
        part.approval_id, part.approved, part.waiting, part.moved = request.id, None, True, True
        reason = reason_of(request, CHANGED if had and chunks else note)
        asked: Chunk = {
            "type": "tool-approval-request", "approvalId": request.id, "toolCallId": id_, "signature": request.token,
            "approvalDescriptor": descriptor_of(request) | dict(descriptor or {}),
        }
        return [*chunks, *self._say(asked | ({} if reason is None else {"reason": reason}))]

    def decision(self, request: ApprovalRequest, *, call_id: str | None = None) -> list[Chunk]:
        """Bring what the client holds of an approval to what is on record. Call it before a call's end is told.

        The decision may have been made elsewhere, another one, or on arguments that a person changed. A part that
        contradicts the record would be refused whenever the client posts it again.

        Args:
            request: As the guard verified it, after it was decided, or was over without a decision.
            call_id: As in `approval`.
        """
        id_ = self._place(request, call_id)
        part = self._parts.get(id_)
        if part is None:
            part = self._parts[id_] = Part(request.tool, request.arguments, False, shown=False, ours=True)
        if part.ended:
            return []
        over, (approved, reason, automatic) = self._over(request), decided(request)
        if obstacle(request.arguments) is not None:
            return [*over, *self._as_text(id_, part, request, approved=approved is True)]
        showing = self._showing(id_, part, request, quiet=True)
        if showing is None and part.shown and approved:
            return [*over, *self._beside(id_, part, request)]
        chunks = [*(showing or []), *over]
        if part.approval_id != request.id or (approved is None and part.approved is not None):
            chunks += self._brought(id_, part)
            asked: Chunk = {"approvalId": request.id, "toolCallId": id_, "signature": request.token}
            told = reason_of(request)
            asked |= {"isAutomatic": True} if automatic else ({} if told is None else {"reason": told})
            chunks += self._asked(part, request.id, asked)
        if approved is not None and part.approved is not approved:
            chunks += self._answered(part, approved, reason)
        return chunks

    def automatic(
        self, call_id: str, approval_id: str, *, approved: bool, reason: str | None = None, token: str | None = None
    ) -> list[Chunk]:
        """Tell that the policy decided a call by itself, and nobody was asked."""
        id_, part = self._known(call_id)
        if part.ended:
            return []
        asked: Chunk = {"approvalId": well_formed(approval_id), "toolCallId": id_, "isAutomatic": True}
        asked |= {} if token is None else {"signature": token}
        return [
            *self._brought(id_, part), *self._asked(part, asked["approvalId"], asked),
            *self._answered(part, approved, reason),
        ]

    def output(self, call_id: str, value: Any) -> list[Chunk]:
        """Tell a call's result."""
        return self._told(call_id, {"type": "tool-output-available", "output": bounded(value)})

    def output_error(self, call_id: str, text: str) -> list[Chunk]:
        """Tell that a call failed, or was over without a decision. ``text`` is shown: no secrets, no details."""
        return self._told(call_id, {"type": "tool-output-error", "errorText": well_formed(text)})

    def void(self, call_id: str, text: str) -> list[Chunk]:
        """Tell that a request counts no more, and take back what the client holds of an answer to it.

        It may count again for another process, and would then contradict that answer.
        """
        id_, part = self._known(call_id)
        taken: list[Chunk] = []
        if not part.ended and type(part.approval_id) is str and part.approved is not None:
            taken = self._asked(part, part.approval_id, {"approvalId": part.approval_id, "toolCallId": id_})
        return [*taken, *self.output_error(call_id, text)]

    def denied(self, call_id: str) -> list[Chunk]:
        """Tell that a call was denied; why stands in its approval (`decision`, `automatic`)."""
        return self._told(call_id, {"type": "tool-output-denied"})

    def _told(self, call_id: str, chunk: Chunk) -> list[Chunk]:
        id_, part = self._known(call_id)
        if part.ended:
            return []
        chunks = self._brought(id_, part)
        denied = chunk["type"] == "tool-output-denied"
        if denied and type(part.approval_id) is str and part.approved is not False:
            chunks += self._answered(part, False, None)
        elif not denied and type(part.approval_id) is str and part.approved is False:
            chunks += self._asked(part, part.approval_id, {"approvalId": part.approval_id, "toolCallId": id_})
        part.ended = part.moved = True
        return [*chunks, *self._say({**chunk, "toolCallId": id_})]

    # -- what the client has -------------------------------------------------------------------------------------

    def moved(self, call_id: str) -> bool:
        """Whether a call was moved on here, so that the client does not post its answer to it again."""
        part = self._parts.get(self._id(call_id))
        return part is not None and part.moved

    def knows(self, call_id: str, approval_id: str | None = None) -> bool:
        """Whether anything was said of a call, or of its approval, even if it is kept back."""
        return self._id(call_id) in self._parts or f"data-tool-call-approval:{approval_id}" in self._data

    def takes(
        self, call_id: str, run_id: str, *, new: bool = False, open_: bool = False, approval_id: str | None = None
    ) -> bool:
        """Whether an id means a run's call in this message; from then on it does. Else another call has it.

        Args:
            new: Whether the model made the call just now: then no part that was asked for, or has ended, is its own.
            open_: Whether the call has not ended: then no part that has is its own.
            approval_id: The request of a call that has ended: an ended part of another request is not its own.
        """
        id_ = self._id(call_id)
        part = self._parts.get(id_)
        if id_ not in self._runs and part is not None:
            asked = type(part.approval_id) is str
            other = asked and approval_id is not None and part.approval_id != approval_id
            if (part.ended and (new or open_ or other)) or (asked and new):
                return False
        return self._runs.setdefault(id_, run_id) == run_id

    def waiting(self) -> dict[str, str]:
        """Return the approvals that the client holds of calls that have not ended, by the id of each call's part."""
        return {
            id_: part.approval_id for id_, part in self._parts.items()
            if not part.ended and type(part.approval_id) is str and not is_inner(id_)
        }

    def named(self, call_id: str) -> bool:
        """Whether anything of this message names a call, if only a request that the inbox decides."""
        return call_id in self._parts or call_id in self._runs or any(
            type(one) is dict and one.get("toolCallId") == call_id for one in self._data.values()
        )

    def approval_of(self, call_id: str) -> str | None:
        """Return the id of the approval that the client holds of a call, if that is known."""
        part = self._parts.get(self._id(call_id))
        return part.approval_id if part is not None and type(part.approval_id) is str else None

    def answer_of(self, call_id: str) -> Any:
        """Return the answer that the client holds of a call's approval; None for none."""
        part = self._parts.get(self._id(call_id))
        return None if part is None else part.approved

    def open_inside(self) -> list[str]:
        """Return the ids of sub-agents' calls that have not ended."""
        return [id_ for id_, part in self._parts.items() if is_inner(id_) and part.shown and not part.ended]

    # -- inside --------------------------------------------------------------------------------------------------

    def _another(self, call_id: str) -> str:
        """Return an id that no part has, for another call of the same id; from now on that one is meant by it."""
        number = 1
        while (free := part_id(call_id, number)) in self._parts:
            number += 1
        self._newest[usable(call_id)] = free
        return free

    def _place(self, request: ApprovalRequest, call_id: str | None) -> str:
        if call_id is not None:
            return self._id(call_id)
        return request.id if request.call_id is None else self._id(part_id(request.call_id, request.occurrence))

    def _known(self, call_id: str) -> tuple[str, Part]:
        id_ = self._id(call_id)
        part = self._parts.get(id_)
        if part is None:
            raise ConfigurationError("The client does not have this call: show it first, with tool_call().")
        return id_, part

    def _showing(self, id_: str, part: Part, request: ApprovalRequest, *, quiet: bool) -> list[Chunk] | None:
        """Return what makes the client show exactly the signed arguments; None where that cannot be any more."""
        arguments = request.arguments
        if part.shown and part.input is UNKNOWN and request.supersedes is None:
            return []  # the client has it as it was asked for
        if part.shown and part.name == request.tool and alike(arguments, part.input):
            return []
        sent = obstacle(arguments) is None
        if part.shown and not (sent and part.fresh):
            return None
        part.name, part.input = request.tool, arguments
        return self._shown(id_, part, quiet=quiet) if sent else None

    def _as_text(self, id_: str, part: Part, request: ApprovalRequest, *, approved: bool) -> list[Chunk]:
        """Prepare a call for its end whose arguments go out as text: without its approval.

        The client would send that back with the text, and it would be refused for ever.
        """
        if not part.shown:
            part.name, part.input = request.tool, request.arguments
            return []
        same = part.name == request.tool and alike(request.arguments, part.input)
        return self._beside(id_, part, request) if approved and not same else []

    def _beside(self, id_: str, part: Part, request: ApprovalRequest) -> list[Chunk]:
        """Show a call that was approved with arguments that its part cannot show any more as another part.

        That one has no approval: the client would send it back under an id that the call does not have.
        """
        chunks = []
        if part.approved is not None and type(part.approval_id) is str:
            chunks += self._asked(part, part.approval_id, {"approvalId": part.approval_id, "toolCallId": id_})
        chunks += self.output_error(id_, CHANGED_BELOW)
        other = self._parts[self._another(id_)] = Part(request.tool, request.arguments, True, shown=False, ours=True)
        return [*chunks, *self._shown(self._id(id_), other, quiet=True)]

    def _shown(self, id_: str, part: Part, *, quiet: bool = False) -> list[Chunk]:
        """Show a call as it is noted; one that the client has is replaced where it stands."""
        new, part.shown = not part.shown, True
        value = part.input if (why := obstacle(part.input)) is None else text_of(part.input)
        dynamic = part.dynamic is True or is_inner(id_) or why is not None
        chunks = call_chunks(id_, part.name, value, dynamic=dynamic, title=part.title, quiet=quiet)
        told = [*self._closed(), *self._say(*chunks, step=new)]
        part.fresh = True
        return told

    def _brought(self, id_: str, part: Part) -> list[Chunk]:
        """Show a call that was kept back, as text: nobody decides on it here any more."""
        return [] if part.shown else self._shown(id_, part, quiet=True)

    def _asked(self, part: Part, approval_id: str, chunk: Chunk) -> list[Chunk]:
        part.approval_id, part.approved = approval_id, None
        return self._say({"type": "tool-approval-request", **chunk})

    def _answered(self, part: Part, approved: bool, reason: str | None) -> list[Chunk]:
        part.approved = approved
        told = {"reason": well_formed(reason)} if reason else {}
        return self._say({
            "type": "tool-approval-response", "approvalId": part.approval_id, "approved": approved, **told,
        })

    def _for_the_inbox(self, id_: str, part: Part, request: ApprovalRequest, why: str) -> list[Chunk]:
        """Name a request that is not offered here; nothing if the client has been told."""
        part.moved, kind = True, f"data-tool-call-approval:{request.id}"
        if kind in self._data:
            return []
        self._data[kind] = {
            "approvalId": request.id, "decideIn": "inbox", "expiresAt": request.decide_by,
            "fingerprint": request.fingerprint, "reason": why, "resumed": False, "toolCallId": id_,
            "toolName": request.tool,
        }
        text = f"The call of {quoted(request.tool)} waits. It cannot be decided here: {why}. Decide it in the inbox."
        return [*self._waiting(request), *self.text(f"inbox-{request.id}", text), *self.end_text()]

    def _waiting(self, request: ApprovalRequest) -> list[Chunk]:
        data = self._data[f"data-tool-call-approval:{request.id}"]
        return self._say({"type": "data-tool-call-approval", "id": request.id, "data": sendable(data)})

    def _over(self, request: ApprovalRequest) -> list[Chunk]:
        """Say of a request that was named for the inbox that it is over."""
        kind = f"data-tool-call-approval:{request.id}"
        known = self._data.get(kind)
        if type(known) is not dict or known.get("resumed") is True:
            return []
        self._data[kind] = known | {"resumed": True}
        return self._waiting(request)
