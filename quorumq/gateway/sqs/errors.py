"""Errors of SQS, by the names that its SDKs know, and those of quorumq as such."""

from __future__ import annotations

from typing import Final

from quorumq.client import Closed
from quorumq.core.values.errors import (
    BadReceipt,
    Busy,
    Conflict,
    HoldLost,
    NotFound,
    QuorumqError,
    TooLarge,
    Transient,
    Unauthorized,
    UnknownToken,
    UsageError,
)
from quorumq.gateway.gateway import REFUSED

_QUERY_CODES: Final = {
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    **{
        code: f"AWS.SimpleQueueService.{code}"
        for code in (
            "MessageNotInflight", "TooManyEntriesInBatchRequest", "EmptyBatchRequest", "BatchEntryIdsNotDistinct",
            "InvalidBatchEntryId", "BatchRequestTooLong", "UnsupportedOperation",
        )
    },
}  # fmt: skip
"""Codes of the query protocol that differ from the names of the JSON protocol."""

_JSON_TYPES: Final = {
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
}
"""Types of errors of the JSON protocol that have another name than the error."""


class SqsError(Exception):
    """An error as an SDK gets it.

    Args:
        code: name of the error.
        delay: seconds to wait before the request is repeated; 0 if there is no such time.
    """

    def __init__(self, code: str, message: str, status: int = 400, delay: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.delay = delay

    @property
    def query_code(self) -> str:
        """Name of the error in the query protocol."""
        return _QUERY_CODES.get(self.code, self.code)

    @property
    def json_type(self) -> str:
        """Type of the error in the JSON protocol."""
        return f"com.amazonaws.sqs#{_JSON_TYPES.get(self.code, self.code)}"

    @property
    def is_sender(self) -> bool:
        """Return True if the request is at fault, and must not be repeated."""
        return self.status < 500


def invalid(message: str) -> SqsError:
    """Return the error of a value that cannot be."""
    return SqsError("InvalidParameterValue", message)


def unsupported(message: str) -> SqsError:
    """Return the error of something that SQS has and quorumq has not."""
    return SqsError("UnsupportedOperation", message)


def no_queue() -> SqsError:
    """Return the error of a queue that is not there, in the words of AWS, which programs may compare."""
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


def no_resource(parameter: str) -> SqsError:
    """Return the error of a queue that a move task names by a parameter, and that is not there."""
    text = f"The resource that you specified for the {parameter} parameter doesn't exist."
    return SqsError("ResourceNotFoundException", text, 404)


def sqs_error(error: QuorumqError) -> SqsError:
    """Return an error of quorumq as SQS would name it: 503 if repeating the request can help, else 400 or 403."""
    text = str(error)
    match error:
        case HoldLost():
            return SqsError("MessageNotInflight", text)
        case Busy():
            return SqsError("RequestThrottled", text, 503, error.delay)
        case Transient() | Closed():
            return SqsError("ServiceUnavailable", text, 503)
        case UnknownToken():
            return SqsError("ServiceUnavailable", f"{REFUSED}.", 503)
        case Unauthorized():
            return SqsError("AccessDenied", text, 403)
        case NotFound():
            return no_queue()
        case BadReceipt():
            return SqsError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
        case Conflict():
            return SqsError("QueueNameExists", text)
        case TooLarge() | UsageError():
            return invalid(text)
    return SqsError("InternalFailure", text, 500)
