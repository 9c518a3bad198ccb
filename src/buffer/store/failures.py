"""What a failed obstore request means, read from the exception's class and text. Pure; `objects.py` acts on it.

obstore keeps status, error code and retries in the text only. They are taken from the debug part, one field per
line: locations hold no newline and bodies are escaped there, so neither can imitate a field. Of the rest little
is passed on, for bodies and URLs may hold credentials.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

_MISSING_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound", "ContainerBeingDeleted"})
_DENIED = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
    | {"AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch", "AccountIsDisabled"}
)
_THROTTLED = frozenset({"SlowDown", "ServerBusy", "TooManyRequests", "Throttling", "RequestLimitExceeded"})
_MISCONFIGURED = frozenset({"InvalidBucketName", "PermanentRedirect", "AuthorizationHeaderMalformed"})
_BAD_LOCATION = frozenset(
    {"KeyTooLongError", "InvalidURI", "InvalidUri", "InvalidObjectName", "InvalidResourceName", "OutOfRangeInput"}
)
_RETRYABLE_4XX = frozenset({408, 409, 412, 416, 429})
"""416: the client goes on with a body that was cut by asking for the rest, and the object is shorter by now."""

_STATUS = re.compile(r"^[ \t]+status: (\d{3}),$", re.MULTILINE)
_RETRIES = re.compile(r"^[ \t]+retries: (\d+),$", re.MULTILINE)
_HTTP_KIND = re.compile(r"^[ \t]+kind: (Timeout|Connect|Interrupted|Request|Decode|Unknown),$", re.MULTILINE)
_SYSTEM_MESSAGE = re.compile(r'^[ \t]+(?:message|error): "([^"]{1,200})",$|"(dns error)"', re.MULTILINE)
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\(code: (\w{1,64})\)")
_MESSAGE = re.compile(r"<Message>([^<]{1,8000})")
_HOST = re.compile(r"Error performing [A-Z]+ (https?://[^/\s?#@]+)[/\s]")
_CREDENTIALS = re.compile(  # where obstore looks for keys when it was given none: the machine's metadata service
    r"Error performing [A-Z]+ https?://[^/\s]+/(latest/(api/token|meta-data)|computeMetadata|metadata/identity)"
)
_QUERY = re.compile(r"\?\S*")

_PUBLIC_OPTIONS = frozenset({"endpoint", "region", "default_region", "bucket", "account_name", "container_name"})
_SECRET_MIN = 4  # shorter values are flags and numbers, and replacing them would garble the text
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
_PUBLIC_VARIABLES = re.compile(r"(?i).*(ENDPOINT(_\w+)?|REGION|ACCOUNT_NAME|CONTAINER_NAME|BUCKET(_NAME)?|PROFILE)")
_FILE_VARIABLES = re.compile(r"(?i).*(FILE|PATH|CREDENTIALS|SERVICE_ACCOUNT)")
_VARIABLE_SECRET_MIN = 16  # no key or token is shorter, and most of what else stands there is
_REASON_MAX = 400  # characters; cut behind `redact`, which would not know a key by its beginning
_UNSUPPORTED = "the server does not support this request; a queue needs conditional writes"


class Failure:
    """One failed request. `kind` is the name of obstore's exception class."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__name__
        self._summary, _, self._debug = str(error).partition("\n\nDebug source:\n")
        status = _STATUS.search(self._debug)
        self.status = int(status[1]) if status else None
        retries = _RETRIES.search(self._debug)
        self.retries = int(retries[1]) if retries else 0
        """How often the request had been repeated. Any of the earlier ones may have had an effect."""
        code = _CODE.search(self._summary)
        self.code = (code[1] or code[2]) if code else None
        host = _HOST.search(self._summary)
        self._host = host[1] if host else "the server"

    @property
    def is_not_found(self) -> bool:
        return self.kind in ("FileNotFoundError", "NotFoundError") and not self.is_missing_bucket

    @property
    def is_missing_bucket(self) -> bool:
        return self.code in _MISSING_BUCKET

    @property
    def is_lost_race(self) -> bool:
        return self.kind in ("AlreadyExistsError", "PreconditionError") and not self.is_missing_bucket

    @property
    def is_bad_location(self) -> bool:
        """No object of this store can have that name."""
        return self.kind == "InvalidPathError" or self.status == 414 or self.code in _BAD_LOCATION

    @property
    def is_denied(self) -> bool:
        return (
            self.kind in ("PermissionDeniedError", "UnauthenticatedError")
            or self.status in (401, 403)
            or self.code in _DENIED
        )

    @property
    def is_throttled(self) -> bool:
        return self.status in (429, 503) or self.code in _THROTTLED

    @property
    def is_retryable(self) -> bool:
        """Whether asking again can help: not after a plain refusal (4xx)."""
        if self.status is None or not 400 <= self.status < 500:
            return True
        return self.status in _RETRYABLE_4XX or self.code == "RequestTimeout" or self.is_throttled

    @property
    def is_unsupported(self) -> bool:
        """The server does not know such requests: it never will, where a refusal may pass."""
        return self.hint == _UNSUPPORTED

    @property
    def hint(self) -> str | None:
        """The way out, where the store as configured can never answer."""
        if "BadScheme" in self._debug:
            return 'an endpoint without TLS needs client_options={"allow_http": True}'
        if _CREDENTIALS.search(self._summary):
            return "no credentials were found: pass them as options, or set them in the environment"
        if self.kind in ("NotImplementedError", "NotSupportedError") or self.status == 501:
            return _UNSUPPORTED
        if self.code in _MISCONFIGURED:
            return "check bucket, region and endpoint"
        return None

    @property
    def reason(self) -> str:
        """What happened, for a message, at any length. Pass it through `redact` before showing it."""
        again = f" (after {self.retries} retries)" if self.retries else ""
        if self.status is not None:
            message = _MESSAGE.search(self._summary)
            parts = [f"{self._host} answered {self.status}", self.code, message and message[1]]
            return ": ".join(part for part in parts if part) + again
        if "HTTP error" in self._summary:
            kind = _HTTP_KIND.search(self._debug)
            system = _SYSTEM_MESSAGE.search(self._debug)
            parts = [kind and kind[1].lower(), system and (system[1] or system[2])]
            return f"no answer from {self._host}: " + ", ".join(part for part in parts if part) + again
        return _QUERY.sub("", self._summary) + again


def redact(text: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """The first line of a text, without any value that could be a secret, as it is or as somebody quoted it: of the
    options, and of the variables that obstore reads."""
    secrets = {*_secrets(options), *_secrets_of_variables(environment)}
    for secret in sorted(secrets, key=len, reverse=True):
        for spelled in (secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote_plus(secret)):
            text = text.replace(spelled, "…")
    line = text.partition("\n")[0]
    return line if len(line) <= _REASON_MAX else line[:_REASON_MAX] + "…"


def _secrets(value: Any, name: str = "") -> Iterator[str]:
    """Every value, whatever its option is called: a key may stand under the wrong name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _secrets(item, str(key))
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _secrets(item, name)
    elif not isinstance(value, bool | None) and name not in _PUBLIC_OPTIONS:
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if len(text) >= _SECRET_MIN:
            yield text


def _secrets_of_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A key itself may stand where the name of its file belongs."""
    for name, value in environment.items():
        is_public = _PUBLIC_VARIABLES.fullmatch(name) or (_FILE_VARIABLES.fullmatch(name) and value.startswith("/"))
        if name.upper().startswith(_VARIABLES) and len(value) >= _VARIABLE_SECRET_MIN and not is_public:
            yield value
