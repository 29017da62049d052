"""The AI SDK's own client and a `useChat` page, run unmodified against our servers."""
