"""What a client is told in fixed words. None of it says why: that stands in the log, and in the audit log."""

from __future__ import annotations

STREAM_FAILED = "An error occurred."
"""What a stream says that broke off, as the SDK's own server does."""

RUN_FAILED = "The run failed."
"""What is said of a run that failed."""

CLOSED = {
    "approved": "The approval is on record, the call has not run yet.",
    "denied": "The call was denied.",
    "executing": "The call is running already, or was started and has not ended.",
    "expired": "The approval expired, the call did not run. Ask again.",
    "failed": "The approval was used already: the call ran and failed. It does not run again.",
    "in_doubt": "The call was started, and nobody knows whether it had an effect. It does not run again.",
    "revoked": "The approval was withdrawn, the call did not run.",
    "succeeded": (
        "The approval was used already: the call ran and succeeded. Its result is not kept here. It does not run again."
    ),
    "superseded": "Another request took this one's place. Look at the newest one.",
}
"""What a person is told who answers a call that is over, by the state of its request."""

KEY_GONE = (
    "This approval counts no more: its key is gone. Nothing runs on it now. Whether its call ran before, it does not "
    "say: ask for the call again if it is still wanted."
)
"""What a person is told who answers a request that a key signed which is gone. It may have run while that key counted.
"""

RESTORED = (
    "This approval counts no more: the server's records were restored from an older copy. Nothing runs on it now. "
    "Whether its call ran before, it does not say: ask for the call again if it is still wanted."
)
"""The same of a request of before a restore, which may have run after the copy was made."""

CHANGED = "Somebody changed the arguments: this is what is asked now."
"""What stands in a request's reason, in the place of another note, where the client showed other arguments."""

AGAIN = "Please answer my last message again."
"""What a user says who has the last answer made anew (``regenerate``), in a conversation that the server keeps."""

CHANGED_BELOW = "Somebody changed the arguments: the call that was approved is shown below."
"""What stands in the place of a result where a call was shown with other arguments than it ran with."""
