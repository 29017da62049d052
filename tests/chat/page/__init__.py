"""A small `useChat` page; ``python -m tests.chat.page`` builds it and prints the folder."""
