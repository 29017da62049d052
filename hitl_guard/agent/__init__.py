"""The built-in agent loop: pause, resume, sub-agents, restarts; every call of a tool goes through the guard.

::

    agent = Agent("shop-bot", model=model, tools=[refund], guard=guard)
    async for event in agent.stream("Refund order A-17.", user="ana"):
        if event["type"] == "tool-call-approval":
            ...                                       # show event["payload"]; the process may end here
    async for event in agent.approve_tool_call(run_id, tool_call_id, approver=Principal("bob")):
        ...                                           # in any process, days later

A call waits where the guard's policy asks a person, or the agent, the request (``require_tool_approval``) or the tool
(``require_approval``) does. The guard's own policy is never lifted by these. A tool may also pause itself
(``context.suspend(payload)``; then `Agent.resume_stream`). Streams do nothing before they are read.

Names, for those who know the JavaScript ones:

=============================================  ==================================================================
``createTool({id, execute, …})``               `Tool` (``name, execute, …``) or the decorator `tool`
``requireApproval``                            ``Tool(require_approval=True)`` or a function ``(args, info) -> bool``
``inputSchema, outputSchema``                  ``input_schema, output_schema``: pydantic models or JSON Schema
``suspendSchema, resumeSchema``                ``suspend_schema, resume_schema``
``context.agent.suspend(payload)``             ``context.suspend(payload)`` (may be awaited)
``context.agent.resumeData, suspendPayload``   ``context.resume_data, context.suspend_payload``
``new Agent({id, model, tools, agents})``      ``Agent(id, model=…, tools=[…], agents=[…], guard=…, memory=True)``
``agent.stream(messages, options)``            ``agent.stream(messages, user=…, …)``: events; await it for the result
``agent.generate``                             ``await agent.generate(messages, user=…, …)``
``requireToolApproval``                        ``require_tool_approval`` (agent or request)
``{toolName, args, requestContext}``           `hitl_guard.policy.code.CallInfo`: ``tool_name, args, request_context``
``approveToolCall({runId, toolCallId})``       ``agent.approve_tool_call(run_id, tool_call_id, approver=…)``
``declineToolCall({…, reason})``               ``agent.decline_tool_call(…, approver=…, reason=…)``
``approveToolCallGenerate`` and its kin        ``approve_tool_call_generate, decline_tool_call_generate``
``resumeStream(data, {runId})``                ``agent.resume_stream(data, run_id, tool_call_id, user=…)``
``resumeGenerate``                             ``resume_generate``
``listSuspendedRuns({threadId, perPage …})``   ``await agent.list_suspended_runs(user=…, thread_id=…, per_page=…)``
``sendToolApproval({threadId, approved})``     ``await agent.send_tool_approval(thread_id=…, approved=…, approver=…)``
``approveNetworkToolCall`` and its kin         ``agent.network, approve_network_tool_call, decline_network_tool_call``
``autoResumeSuspendedTools``                   ``auto_resume_suspended_tools``, and ``Tool(auto_resume=True)``
``hooks.beforeToolCall, afterToolCall``        ``Hooks(before_tool_call=…, after_tool_call=…)``
``memory: {thread, resource}``                 ``thread_id=…, resource_id=…``; ``await agent.recall(thread_id, user=…)``
``maxSteps, requestContext``                   ``max_steps, request_context``
``AGENT_RESUME_NO_SNAPSHOT_FOUND``             `AgentError` ``run-not-found``; in a conversation ``detail="thread"``
``AGENT_RESUME_TOOL_CALL_NOT_SUSPENDED``       `AgentError` ``call-not-suspended``
``…_AMBIGUOUS_SUSPENDED_RUNS``                 `AgentError` ``call-ambiguous``
``…_INVALID_PER_PAGE, …_INVALID_PAGE``         `AgentError` ``invalid-page``
=============================================  ==================================================================

Ours alone: ``agent.continue_stream(run_id, user=…)`` goes on with what was decided by inbox or command line, with
what expired, and with what a dead process left. `Agent.sync` has the same methods for synchronous code. An approver is
always named, and by default cannot be the run's user. Events of an approval also carry ``approvalId``, ``fingerprint``,
``token``, ``expiresAt`` and ``reason``.
"""

from ..errors import AgentError
from .agent import Agent
from .classifier import classifier_policy
from .hooks import Hooks
from .memory import Memory
from .runs import PendingCall, SuspendedRun, SuspendedRuns
from .stream import AgentResult, AgentStream
from .tools import Tool, ToolContext, tool

__all__ = [
    "Agent", "AgentError", "AgentResult", "AgentStream", "Hooks", "Memory", "PendingCall", "SuspendedRun",
    "SuspendedRuns", "Tool", "ToolContext", "classifier_policy", "tool",
]
