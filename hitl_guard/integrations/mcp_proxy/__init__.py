"""A proxy between any MCP client and any MCP server (``hitl-guard mcp-proxy``): tool calls wait for their approval.

It works on JSON-RPC frames, not on an SDK. All but the results of ``tools/list`` and the requests of ``tools/call``
goes through as it came, in both directions. It speaks the versions with a handshake (2025-11-25 and before) and
2026-07-28.

- `frames`: a frame's bytes: read strictly, told apart, changed in one place
- `listing`: what the server says of its tools, pinned; tools that the policy never lets run are hidden
- `gate`: one tool call, from the client's frame to the server's answer
- `pausing`: how a client is told that a person must decide first
- `relay`: which frame goes where, and which answer belongs to whom
- `stdio`, `http`, `events`: the pipes, the server as a child process, and the server behind a URL

Prompts, resources and what a server asks the client for (sampling, elicitation, roots) are no tool calls and are not
guarded. Nor are tools of the server that are reached past the proxy.
"""
