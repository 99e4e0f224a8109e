"""The import hook. Its text is copied into the environment of hermes-agent, where a ``.pth`` line
imports it at the start of every interpreter.

So it uses the standard library alone, imports almost nothing of it, and never raises: whatever
fails here leaves the program as it was. Modules of hermes-agent that import ``sqlite3`` get another
module under that name, whose ``connect`` decides by path; those that copy or remove folders get
another ``shutil``. No other module of the process sees them: the real ones are not changed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost more than this whole module
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

__all__ = ["SCHEME", "install", "is_store"]

SCHEME = 1
"""Version of the settings that a copy of this file takes."""

_BOUND = ("sqlite3", "sqlite3.dbapi2", "shutil")
"""Modules that hermes-agent gets another one for."""
_WANTED = frozenset({"sqlite3", "sqlite3.dbapi2", "rmtree", "copytree"})
"""Names that a module has that needs another ``sqlite3`` or ``shutil``."""
_PATHS = ("src", "dst", "path")
"""Parameters of shutil that name a file or a folder."""
_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_COPIES = frozenset({"backups", "checkpoints", "hermes-agent", "sandboxes", "state-snapshots"})
"""Folders of a home whose databases are copies, or belong to another program."""
_URI_ARGUMENT = 6
"""Position of ``uri`` behind the path, in the parameters of ``sqlite3.connect``."""


def install(settings: Mapping[str, Any]) -> None:
    """Put the hook in front of all finders, once. Never raises."""
    try:
        if os.environ.get("HERMES_ACTOR_DISABLE", "").strip() not in ("", "0"):
            return
        if settings["scheme"] == SCHEME and not any(
            getattr(finder, "is_hermes_actor", False) for finder in sys.meta_path
        ):
            sys.meta_path.insert(0, _Finder(settings))
    except Exception as error:
        _say(f"the hook does nothing: {error!r}")


def is_store(path: str | os.PathLike[str], homes: Sequence[str]) -> bool:
    """Return True if *path* is a database that a program keeps in one of *homes*, not a copy."""
    real = os.path.realpath(path)
    for home in homes:
        if real.startswith(home + os.sep):
            *folders, name = real[len(home) + 1 :].split(os.sep)
            return name.endswith(_SUFFIXES) and not any(
                folder.startswith(".") or folder in _COPIES for folder in folders
            )
    return False


_said: set[str] = set()


def _say(text: str) -> None:
    """Print one line on standard error, each text once in a process."""
    if text not in _said:
        _said.add(text)
        try:  # noqa: SIM105 - contextlib is an import
            sys.stderr.write(f"hermes-actor: {text}\n")
        except Exception:  # a closed stream must not end the program either
            pass


def _names(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the top-level modules of hermes-agent, also of a release that was installed since.

    An installer that replaces it leaves the hook as it is. A checkout is looked at every time.
    """
    names = set(settings["names"])
    try:
        folder = settings["folder"]
        if settings["editable"]:
            entries = os.listdir(folder)
            names.update(name[:-3] for name in entries if name.endswith(".py"))
            names.update(
                name for name in entries
                if "." not in name and os.path.exists(os.path.join(folder, name, "__init__.py"))
            )  # fmt: skip
        elif not os.path.isdir(folder):  # it has the version in its name
            parent = os.path.dirname(folder)
            for name in os.listdir(parent):
                if name.startswith("hermes_agent-") and name.endswith(".dist-info"):
                    with open(os.path.join(parent, name, "RECORD"), encoding="utf-8") as record:
                        for line in record:
                            path = line.split(",", 1)[0]
                            if path.endswith(".py"):
                                names.add(path.split("/", 1)[0].removesuffix(".py"))
    except (OSError, KeyError, TypeError):
        pass  # those of the release that was attached
    own = {"hermes_actor", "setup", "conftest", "tests", *sys.stdlib_module_names}
    return frozenset(name for name in names if name.isidentifier() and name not in own)


class _Finder:
    """A meta-path finder that wraps the loaders of the modules of hermes-agent."""

    is_hermes_actor = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._names = _names(settings)
        self._faces: dict[str, ModuleType] = {}
        self._builtins: dict[str, Any] | None = None
        self._asked: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification that the other finders have, with our loader around theirs."""
        # Another finder may ask all finders too: then it is its turn, and ours is done. A thread
        # that asks at the same time waits for the lock of the module, in the import system.
        if name.partition(".")[0] not in self._names or name in self._asked:
            return None
        self._asked.add(name)
        try:
            return self._wrapped(name, path, target)
        except Exception as error:
            _say(f"{name} is not attached: {error!r}")
            return None
        finally:
            self._asked.discard(name)

    def _wrapped(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec: Any = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "get_code"):
                        spec.loader = _Loader(spec.loader, self)
                    return spec  # type: ignore[no-any-return]
        return None

    def add_home(self, home: str) -> None:
        """Attach one more home, in this process alone: for the proof and the self-test."""
        self._settings["homes"] = [*self._settings["homes"], os.path.realpath(home)]

    def bind(self, module: ModuleType, code: CodeType) -> None:
        """Give *module* another ``sqlite3`` and ``shutil``, if its *code* uses one anywhere."""
        warning = self._settings.get("warning")
        if warning:
            if module.__name__ == "hermes_state":
                _say(warning)
        elif _uses_bound(code):
            if self._builtins is None:
                self._builtins = self._with_own_import()
            # Functions keep the builtins of their module, so that their imports are seen as well.
            module.__dict__["__builtins__"] = self._builtins

    def replace(self, module: ModuleType) -> None:
        """Give ``hermes_state`` our classes, if it is a release that they stand in for."""
        typed = self._settings.get("typed")
        name = module.__name__
        if name not in ("hermes_state", "gateway.session") or not typed:
            return
        if self._settings.get("warning"):
            return
        import hashlib

        with open(str(module.__file__), "rb") as source:
            digest = hashlib.sha256(source.read()).hexdigest()
        if name == "gateway.session":
            from hermes_actor.attach.typed import route_chats

            route_chats(module, digest, self._settings["homes"])
        elif digest in typed:
            from hermes_actor.attach.typed import take_over

            take_over(module, self._settings["homes"])

    def _with_own_import(self) -> dict[str, Any]:
        import builtins

        def import_module(
            name: str,
            globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names of __import__
            locals: Mapping[str, Any] | None = None,  # noqa: A002
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> Any:
            if level or name not in _BOUND:
                return builtins.__import__(name, globals, locals, fromlist or (), level)
            base = name.partition(".")[0]
            if base not in self._faces:
                native = builtins.__import__(base)
                make = self._make_shutil if base == "shutil" else self._make_face
                self._faces[base] = make(native)
            return self._faces[base]

        def open_file(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if "w" in mode and "b" in mode and self._is_replaced(file):
                from hermes_actor.attach.replacements import NewContent

                return NewContent(file)
            return builtins.open(file, mode, *arguments, **named)

        return {**vars(builtins), "__import__": import_module, "open": open_file}

    def _is_replaced(self, file: Any) -> bool:
        """Return True if *file* is a store that we replace for the program."""
        try:
            if self._is_owned(file, None) and os.path.getsize(file):
                from hermes_actor.attach import replacements

                replacements.watch_removals(self._settings["homes"])
                return True
        except OSError:
            pass  # there is none
        except Exception as error:
            _say(f"{file} is replaced beside us: {error!r}")
        return False

    def _make_face(self, native: Any) -> ModuleType:
        face: Any = type(sys)("sqlite3", native.__doc__)
        face.__dict__.update(vars(native))
        face.dbapi2 = face

        def connect(database: Any, *arguments: Any, **named: Any) -> Any:
            uri = arguments[_URI_ARGUMENT] if len(arguments) > _URI_ARGUMENT else named.get("uri")
            if self._is_owned(database, uri):
                ours = self._our_connect(native)
                if ours is not None:
                    conn = ours(database, *arguments, **named)
                    # A build that was installed since may lack it.
                    getattr(conn, "expect_migration", lambda: None)()
                    return conn
            return native.connect(database, *arguments, **named)

        connect.__doc__ = native.connect.__doc__
        face.connect = connect
        return face  # type: ignore[no-any-return]

    def _make_shutil(self, native: Any) -> ModuleType:
        face: Any = type(sys)("shutil", native.__doc__)
        face.__dict__.update(vars(native))

        def bound(name: str, ours: str) -> Callable[..., Any]:
            original = getattr(native, name)

            def call(*arguments: Any, **named: Any) -> Any:
                paths = [*arguments[:2], *(named[name] for name in named if name in _PATHS)]
                return self._of_home(paths, ours, original)(*arguments, **named)

            for attribute in ("__doc__", "__name__"):
                setattr(call, attribute, getattr(original, attribute))
            # `shutil.rmtree.avoids_symlink_attacks` is asked for by programs.
            call.__dict__.update(vars(original))
            return call

        face.copytree = bound("copytree", "copy_tree")
        face.rmtree = bound("rmtree", "remove_tree")
        face.move = bound("move", "move_file")
        for name in ("copy", "copy2", "copyfile"):
            setattr(face, name, bound(name, "copy_file"))
        return face  # type: ignore[no-any-return]

    def _of_home(
        self, paths: Sequence[Any], ours: str, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return our function if one of *paths* is in an attached home, else the *original*."""
        try:
            homes = self._settings["homes"]
            for path in paths:
                real = os.path.realpath(os.fsdecode(path)) + os.sep
                if any(real.startswith(home + os.sep) for home in homes):
                    from hermes_actor.attach import folders

                    return folders.bound(ours, original, homes)
        except TypeError:
            pass  # no path: shutil says so
        except Exception as error:
            _say(f"{ours} is not attached: {error!r}")
        return original

    def _is_owned(self, database: Any, uri: object) -> bool:
        try:
            path = os.fsdecode(database)
            if uri and path.startswith("file:"):
                from urllib.parse import unquote, urlsplit

                path = unquote(urlsplit(path).path)
            return path not in ("", ":memory:") and is_store(path, self._settings["homes"])
        except (TypeError, ValueError):  # sqlite3 says what is wrong with it
            return False

    def _our_connect(self, native: Any) -> Callable[..., Any] | None:
        try:
            from hermes_actor.dbapi import connect
        except Exception as error:
            text = f"cannot be imported in this environment ({error})"
            if self._is_required():
                raise native.OperationalError(
                    f"unable to open database file: hermes-actor {text}, and attach.required is"
                    " set in config.yaml"
                ) from error
            _say(f"{text}; the program opens its databases by itself. {self._settings['advice']}")
            return None
        return connect

    def _is_required(self) -> bool:
        """Return True if a home has ``attach: {required: true}``, without a parser of YAML."""
        import re

        for home in self._settings["homes"]:
            try:
                with open(os.path.join(home, "config.yaml"), encoding="utf-8") as file:
                    text = file.read()
            except (OSError, ValueError):
                continue
            block = re.search(
                r"^attach:(.*(?:\n[ \t]+.*|\n[ \t]*#.*|\n[ \t]*)*)", text, re.MULTILINE
            )
            if block and re.search(r"\brequired\s*:\s*(true|yes|on|1)\b", block[1], re.IGNORECASE):
                return True
        return False


class _Loader:
    """The loader of a module of hermes-agent, which binds before it runs the code."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the loader makes."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def get_code(self, name: str) -> CodeType | None:
        """Return the code for ``python -m``, which runs it in ``__main__``."""
        code: CodeType | None = self._loader.get_code(name)
        if sys.argv[:1] == ["-m"] and code is not None:
            try:
                self._finder.bind(sys.modules["__main__"], code)
            except Exception as error:
                _say(f"{name} is not attached: {error!r}")
        return code

    def exec_module(self, module: Any) -> None:
        """Run the code of *module*, bound; on any fault of ours, as if we were not there."""
        module.__spec__.loader = module.__loader__ = self._loader
        try:
            code = self._loader.get_code(module.__name__)
            if code is not None:
                self._finder.bind(module, code)
        except Exception as error:
            _say(f"{module.__name__} is not attached: {error!r}")
            code = None
        if code is None:
            self._loader.exec_module(module)
        else:
            exec(code, module.__dict__)
        try:
            self._finder.replace(module)
        except Exception as error:
            _say(f"{module.__name__} is not replaced: {error!r}")


def _uses_bound(code: CodeType) -> bool:
    """Return True if *code*, or a function in it, has a name that we bind."""
    kind, has_none = type(code), _WANTED.isdisjoint
    found = [code]
    for one in found:  # all names of a program are looked at: one call of C for each function
        if not has_none(one.co_names):
            return True
        found += [inner for inner in one.co_consts if type(inner) is kind]
    return False
