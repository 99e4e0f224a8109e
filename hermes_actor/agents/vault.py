"""Encryption of secrets, in the calling process alone: writers and files see ciphertext only."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_actor.errors import BadValue, MissingDriver, NotConfigured

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = [
    "KEY_VARIABLES", "Secret", "Vault", "key_variable", "load_vault", "new_key", "parse_key",
    "read_key",
]  # fmt: skip

KEY_VARIABLES = ("HERMES_ACTOR_SECRETS_KEY", "OPENHERMIT_SECRETS_KEY")
_KEY_BYTES, _NONCE_BYTES, _TAG_BYTES = 32, 12, 16


class Secret:
    """A text that no representation shows."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Secret(****)"

    __str__ = __repr__


def new_key() -> str:
    """Return a random key, in the form of the environment and of the key file."""
    return base64.b64encode(os.urandom(_KEY_BYTES)).decode()


def parse_key(text: str) -> bytes:
    """Return the bytes of a key: base64 of either alphabet, with or without padding.

    Raises :class:`NotConfigured` that names the length found.
    """
    packed = re.sub(r"\s", "", text).replace("-", "+").replace("_", "/").rstrip("=")
    if not packed:
        raise NotConfigured("there is no key for secrets; make one with: hermes-actor agents setup")
    try:
        key = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise NotConfigured("the key for secrets is not base64") from None
    if len(key) != _KEY_BYTES:
        raise NotConfigured(f"the key for secrets has {len(key)} bytes; it must have {_KEY_BYTES}")
    return key


class Vault:
    """Encrypts and decrypts with one key (AES-256-GCM)."""

    def __init__(self, key: str) -> None:
        """*key* is base64 of 32 bytes. Raises :class:`NotConfigured`."""
        secret = parse_key(key)
        self._cipher = _cipher(secret)
        self.key_id = hmac.new(secret, b"hermes-actor key id", hashlib.sha256).hexdigest()[:16]
        """Tells keys apart, and nothing about the key."""

    def __repr__(self) -> str:
        return "Vault(****)"

    def encrypt(self, text: str, nonce: bytes | None = None) -> str:
        """Return ``nonce:tag:ciphertext``; a nonce is random unless a test gives one."""
        nonce = nonce or os.urandom(_NONCE_BYTES)
        try:
            sealed = self._cipher.encrypt(nonce, text.encode(), None)
        except UnicodeEncodeError:
            raise BadValue("the secret holds characters that UTF-8 cannot encode") from None
        parts = (nonce, sealed[-_TAG_BYTES:], sealed[:-_TAG_BYTES])
        return ":".join(base64.b64encode(part).decode() for part in parts)

    def decrypt(self, stored: str) -> str:
        """Return the text. Raises :class:`BadValue` for another key or a changed ciphertext."""
        from cryptography.exceptions import InvalidTag

        try:
            nonce, tag, sealed = (base64.b64decode(p, validate=True) for p in stored.split(":"))
            if len(nonce) != _NONCE_BYTES or len(tag) != _TAG_BYTES:
                raise ValueError
        except ValueError:
            raise BadValue("malformed ciphertext") from None
        try:
            return self._cipher.decrypt(nonce, sealed + tag, None).decode()
        except InvalidTag:
            raise BadValue("the ciphertext was changed, or is of another key") from None

    def try_decrypt(self, stored: str) -> str | None:
        """Return the text; ``None`` if this key cannot open it."""
        try:
            return self.decrypt(stored)
        except (BadValue, UnicodeDecodeError):
            return None


def key_variable() -> str | None:
    """Return the name of the variable that holds the key, ``None`` if there is none."""
    return next((name for name in KEY_VARIABLES if os.environ.get(name, "").strip()), None)


def load_vault(key_file: Path | None) -> Vault | None:
    """Return the vault of the environment or else of *key_file*; ``None`` without a key.

    Raises :class:`NotConfigured` for a key of the wrong form, and for a file that others can read.
    """
    if (name := key_variable()) is not None:
        return Vault(os.environ[name])
    if key_file is None or not key_file.exists():
        return None
    return Vault(read_key(key_file))


def read_key(file: Path) -> str:
    """Return the key in *file*.

    Raises :class:`NotConfigured` if others can read it, or if this process cannot.
    """
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise NotConfigured(f"others can read {file}; run: chmod 600 {file}")
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        # Without its content, which may be a key in another form.
        raise NotConfigured(f"{file} holds no key: it is not base64") from None
    except OSError as error:
        raise NotConfigured(f"{file} cannot be read: {error.strerror}") from error


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError as error:
        raise MissingDriver(
            "secrets need the Python package cryptography; install it with:"
            " pip install 'hermes-actor[agents]'"
        ) from error
    return AESGCM(key)
