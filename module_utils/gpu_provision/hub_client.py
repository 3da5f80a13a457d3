"""What a hub says of a repository, over HTTP with the standard library: its files and sizes, and why it gives none.

The API is that of huggingface.co, as huggingface_hub 0.36 to 2.4 uses it: ``/api/models/ORG/NAME/revision/REVISION``
lists the files, ``/ORG/NAME/resolve/COMMIT/FILE`` gives one, and the header X-Error-Code says which of the refusals an
answer is (utils/_http.py, hf_raise_for_status).
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlsplit

ENDPOINT = "https://huggingface.co"
AGENT = "gpu-host-validation"
SECONDS = 30.0
ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
# "org/name", and no path. Names of one word ("gpt2") are those of the hub's first years; a directory has that form too.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}\Z")
REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,200}\Z")
TOKEN_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
ADVICE = "Put a token that may read it into inference_server_secrets (HF_TOKEN, from a vault)"


class HubProblem(Exception):
    """`kind`: gated, unauthorized, not_found, no_revision, limited, hub, dns, proxy, tls, offline. The text says what
    to do."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Hub:
    """One hub, as a process with this `environment` would reach it: HF_ENDPOINT, the proxies, the certificates."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.endpoint = (environment.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
        self.token = next((environment[name].strip() for name in TOKEN_NAMES if environment.get(name)), None)
        self.host = urlsplit(self.endpoint).hostname or self.endpoint
        self.proxy = find_proxy(self.endpoint, environment)
        bundle = next(
            (environment[name] for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE") if environment.get(name)), None
        )
        try:
            context = ssl.create_default_context(cafile=bundle)
        except (OSError, ssl.SSLError) as error:
            raise HubProblem("tls", "The certificates in %s could not be read: %s" % (bundle, error)) from None
        scheme = urlsplit(self.endpoint).scheme
        self._environment, self._context = environment, context
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({scheme: self.proxy} if self.proxy else {}),
            urllib.request.HTTPSHandler(context=context),
            _OwnRedirects(),
        )

    def list_files(self, repository: str, revision: str) -> dict[str, Any]:
        """``{commit, files: {path: {size, etag}}}``. The etag names the blob in the cache: SHA-256 of what is in LFS,
        the git object of another file."""
        path = "/api/models/%s/revision/%s?blobs=true" % (repository, quote(revision, safe=""))
        text = self._ask("GET", path, repository, revision)
        try:
            content = json.loads(text)
            files = {}
            for one in content["siblings"]:
                stored = one.get("lfs") or {}
                files[str(one["rfilename"])] = {
                    "size": stored.get("size", one.get("size")),
                    "etag": stored.get("sha256") or one.get("blobId"),
                }
            return {"commit": str(content["sha"]), "files": files}
        except (ValueError, KeyError, TypeError, AttributeError):
            shown = " ".join(text.decode("utf-8", "replace").split())[:120]
            why = "%s%s is no list of files of a hub: %s. Is HF_ENDPOINT right, or does a portal answer in its place?"
            raise HubProblem("hub", why % (self.endpoint, path.partition("?")[0], shown or "nothing")) from None

    def prove_access(self, repository: str, revision: str, name: str) -> None:
        """A gated repository lists its files to everybody, and gives none of them."""
        path = "/%s/resolve/%s/%s" % (repository, quote(revision, safe=""), quote(name))
        self._ask("HEAD", path, repository, revision)

    def open_file(self, repository: str, revision: str, name: str, begins: int = 0) -> Any:
        """The answer with the content of a file from byte `begins` on: 206, or 200 from one that gives all of it.

        The bytes may lie on another host, which is asked without the token (the address is signed).
        """
        path = "/%s/resolve/%s/%s" % (repository, quote(revision, safe=""), quote(name))
        request = self._make_request("GET", self.endpoint + path)
        if begins:
            request.add_header("Range", "bytes=%d-" % begins)
        try:
            try:
                return self._opener.open(request, timeout=SECONDS)
            except urllib.error.HTTPError as error:
                elsewhere = error.headers.get("Location") if 300 <= error.code < 400 else None
                if not elsewhere or urlsplit(elsewhere).scheme not in ("http", "https"):
                    raise
                request = urllib.request.Request(elsewhere, headers={"User-Agent": AGENT})  # noqa: S310  looked at above
                if begins:
                    request.add_header("Range", "bytes=%d-" % begins)
                return self._opener_of(elsewhere).open(request, timeout=SECONDS)
        except urllib.error.HTTPError as error:
            raise self._explain_refusal(error.code, error.headers, repository, revision) from None
        except (OSError, ValueError) as error:
            raise self._explain_silence(error) from None

    def _opener_of(self, address: str) -> urllib.request.OpenerDirector:
        """For an address of another host, which a proxy may have to be asked for, or not."""
        proxy = find_proxy(address, self._environment)
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({urlsplit(address).scheme: proxy} if proxy else {}),
            urllib.request.HTTPSHandler(context=self._context),
        )

    def _make_request(self, method: str, address: str) -> urllib.request.Request:
        request = urllib.request.Request(address, method=method)  # noqa: S310  the hub's own address
        request.add_header("User-Agent", AGENT)
        if self.token:
            request.add_header("Authorization", "Bearer " + self.token)
        return request

    def _ask(self, method: str, path: str, repository: str, revision: str) -> bytes:
        request = self._make_request(method, self.endpoint + path)
        try:
            with self._opener.open(request, timeout=SECONDS) as answer:
                return bytes(answer.read(ANSWER_LIMIT_BYTES))
        except urllib.error.HTTPError as error:
            if 300 <= error.code < 400:  # to where the bytes lie: access is granted
                return b""
            raise self._explain_refusal(error.code, error.headers, repository, revision) from None
        except (OSError, ValueError) as error:  # URLError is an OSError
            raise self._explain_silence(error) from None

    def _explain_refusal(self, code: int, headers: Any, repository: str, revision: str) -> HubProblem:
        kind, said = headers.get("X-Error-Code") or "", headers.get("X-Error-Message") or ""
        page = "%s/%s" % (self.endpoint, repository)
        if code == 407:
            return self._proxy_problem("answers 407: it wants a name and a password")
        if kind == "GatedRepo":
            who = "the account of HF_TOKEN has no access to it" if self.token else "no token was given"
            text = "%s is gated, and %s. Accept its conditions on %s with the account of the token%s."
            return HubProblem("gated", text % (repository, who, page, "" if self.token else ". " + ADVICE))
        if kind == "RevisionNotFound":
            text = "%s has no revision %s. Correct the argument `revision`: a branch, a tag or a whole commit (%s)."
            return HubProblem("no_revision", text % (repository, revision, page + "/commits"))
        if code == 401 and self.token:
            text = "%s refuses the token (HF_TOKEN): it is wrong, has expired or was withdrawn%s. Give a valid one."
            return HubProblem("unauthorized", text % (self.host, " (%s)" % said if said else ""))
        if code == 401:  # so the hub answers whoever may not know whether there is one
            text = (
                "%s shows no %s to somebody without a token: there is none of that name, or it is private. Correct "
                "the name (inference_server_model), or: %s."
            )
            return HubProblem("unauthorized", text % (self.host, repository, ADVICE))
        if code == 403:
            text = (
                "%s forbids %s to this token%s. Give the token the right to read it (a fine-grained token names each "
                "repository)."
            )
            return HubProblem("unauthorized", text % (self.host, repository, " (%s)" % said if said else ""))
        if code == 404:
            private = "" if self.token else ", or it is private. " + ADVICE
            text = "%s has no model %s%s. Correct inference_server_model; a directory on the host begins with /."
            return HubProblem("not_found", text % (self.host, repository, private))
        if code == 429:
            text = "%s limits how often it is asked (429)%s. Wait some minutes, or give a token: it has its own limit."
            return HubProblem("limited", text % (self.host, ": " + said if said else ""))
        text = "%s answers %d%s: a fault of the hub, or of what stands between. Try again later."
        return HubProblem("hub", text % (self.host, code, ": " + said if said else ""))

    def _explain_silence(self, error: BaseException) -> HubProblem:
        cause = getattr(error, "reason", None)
        cause = cause if isinstance(cause, BaseException) else error
        told = str(cause) or type(cause).__name__
        if isinstance(cause, ssl.SSLCertVerificationError):
            text = (
                "The certificate of %s is not trusted (%s). Where a proxy opens TLS, add its authority to the system's "
                "certificates and name them in inference_server_environment: SSL_CERT_FILE, REQUESTS_CA_BUNDLE."
            )
            return HubProblem("tls", text % (self.host, told))
        if self.proxy:
            return self._proxy_problem(told)
        if isinstance(cause, socket.gaierror):
            text = (
                "The name %s is not resolved on this host (%s). Look at /etc/resolv.conf; where only a proxy leads "
                "out, name it in inference_server_environment (HTTPS_PROXY)."
            )
            return HubProblem("dns", text % (self.host, told))
        text = (
            "%s cannot be reached from this host (%s). Open the way to it, name a proxy (HTTPS_PROXY) or a mirror "
            "(HF_ENDPOINT) in inference_server_environment, or bring the model by other means and name its directory."
        )
        return HubProblem("offline", text % (self.endpoint, told))

    def _proxy_problem(self, told: str) -> HubProblem:
        shown = re.sub(r"//[^@/]*@", "//", self.proxy or "a proxy on the way")
        text = (
            "%s is not reached through the proxy %s (%s). Correct HTTPS_PROXY in inference_server_environment (with a "
            "password: in inference_server_secrets), or except the hub from it with NO_PROXY."
        )
        return HubProblem("proxy", text % (self.host, shown, told))


class _OwnRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a repository to its new name, and to no other host: the token is the hub's alone."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            return None
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None:
            made.method = req.get_method()
        return made


def find_proxy(address: str, environment: dict[str, str]) -> str | None:
    """The proxy that a process with this environment asks for `address`; None where it asks directly."""
    lower = {name.lower(): value for name, value in environment.items() if name.lower().endswith("_proxy") and value}
    parts = urlsplit(address)
    bypass = getattr(urllib.request, "proxy_bypass_environment")  # noqa: B009  typeshed knows it not
    if lower.get("no_proxy") and bypass(parts.netloc, {"no": lower["no_proxy"]}):
        return None
    proxy = lower.get(parts.scheme + "_proxy") or lower.get("all_proxy")
    return proxy if not proxy or "://" in proxy else "http://" + proxy
