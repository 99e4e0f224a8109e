"""The import hook. Its text is copied into the environment of hermes-agent, where a ``.pth`` line
imports it at the start of every interpreter.

So it uses the standard library alone, imports almost nothing of it, and never raises: whatever
fails here leaves the program as it was, as a whole: after a fault nothing more is bound, and what
was bound acts like the real modules. Modules of hermes-agent that import ``sqlite3`` get another
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
        self.has_failed = False

    def give_up(self, what: str, error: Exception) -> None:
        """Have the program do everything by itself from now on, after an *error* of ours.

        Raises ``ImportError`` if the program must not open its stores by itself.
        """
        self.has_failed = True
        _say(f"{what}: {error!r}; the program opens its databases by itself from now on")
        if self._is_required():
            raise ImportError(f"{what}, and attach.required is set in config.yaml") from error

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification that the other finders have, with our loader around theirs."""
        try:
            # Another finder may ask all finders too: then it is its turn, and ours is done. A
            # thread that asks at the same time waits for the lock of the module, in the import
            # system.
            if name.partition(".")[0] not in self._names or name in self._asked:
                return None
            if self.has_failed:
                return None
            self._asked.add(name)
            try:
                return self._wrapped(name, path, target)
            except ImportError:
                return None  # the other finders say it once more
            finally:
                self._asked.discard(name)
        except Exception as error:
            self.give_up(f"{name} is not attached", error)
            return None

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
        """Give ``hermes_state`` our classes, if it is a release that they stand in for.

        The chats of ``gateway.session`` are kept in our store for any release that is known.
        """
        typed = self._settings.get("typed") or ()
        name = module.__name__
        if name != "gateway.session" and (name != "hermes_state" or not typed):
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
            try:
                if not level and name in _BOUND:
                    return self._face(name.partition(".")[0], builtins.__import__)
            except Exception as error:
                self.give_up(f"{name} is not bound", error)
            return builtins.__import__(name, globals, locals, fromlist or (), level)

        def open_file(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            content = None
            try:
                content = self._content_for(file, mode)
            except Exception as error:
                self.give_up(f"{file} is not attached", error)
            if content is not None:
                return content(file)
            return builtins.open(file, mode, *arguments, **named)

        return {**vars(builtins), "__import__": import_module, "open": open_file}

    def _face(self, base: str, load: Callable[[str], Any]) -> ModuleType:
        if base not in self._faces:
            make = self._make_shutil if base == "shutil" else self._make_face
            self._faces[base] = make(load(base))
        return self._faces[base]

    def _content_for(self, file: Any, mode: Any) -> Callable[[Any], Any] | None:
        """Return what opens *file*, if that is a store that the program replaces."""
        if self.has_failed or type(mode) is not str or "w" not in mode or "b" not in mode:
            return None
        try:
            if not self._is_owned(file, None) or not os.path.getsize(file):
                return None
        except OSError:
            return None  # there is none
        from hermes_actor.attach import replacements

        replacements.watch_removals(self._settings["homes"])
        return replacements.NewContent

    def _make_face(self, native: Any) -> ModuleType:
        face: Any = type(sys)("sqlite3", native.__doc__)
        face.__dict__.update(vars(native))
        face.dbapi2 = face

        def connect(database: Any, *arguments: Any, **named: Any) -> Any:
            way = None
            try:
                way = self._way_to(database, arguments, named, native)
            except Exception as error:
                self.give_up(f"{database} is not attached", error)
            return (way or native.connect)(database, *arguments, **named)

        connect.__doc__ = native.connect.__doc__
        face.connect = connect
        return face  # type: ignore[no-any-return]

    def _make_shutil(self, native: Any) -> ModuleType:
        face: Any = type(sys)("shutil", native.__doc__)
        face.__dict__.update(vars(native))

        def bound(name: str, ours: str) -> Callable[..., Any]:
            original = getattr(native, name)

            def call(*arguments: Any, **named: Any) -> Any:
                function = None
                try:
                    paths = [*arguments[:2], *(named[name] for name in named if name in _PATHS)]
                    function = self._of_home(paths, ours, original)
                except Exception as error:
                    self.give_up(f"{name} is not attached", error)
                return (function or original)(*arguments, **named)

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
    ) -> Callable[..., Any] | None:
        """Return our function if one of *paths* is in an attached home."""
        homes = () if self.has_failed else self._settings["homes"]
        for path in paths:
            try:
                real = os.path.realpath(os.fsdecode(path)) + os.sep
            except (TypeError, ValueError):
                continue  # no path: shutil says so
            if any(real.startswith(home + os.sep) for home in homes):
                from hermes_actor.attach import folders

                return folders.bound(ours, original, homes)
        return None

    def _is_owned(self, database: Any, uri: object) -> bool:
        try:
            path = os.fsdecode(database)
            if uri and path.startswith("file:"):
                from urllib.parse import unquote, urlsplit

                path = unquote(urlsplit(path).path)
            return path not in ("", ":memory:") and is_store(path, self._settings["homes"])
        except (TypeError, ValueError):  # sqlite3 says what is wrong with it
            return False

    def _way_to(
        self, database: Any, arguments: Sequence[Any], named: Mapping[str, Any], native: Any
    ) -> Callable[..., Any] | None:
        """Return our ``connect`` for a store of a home, one that refuses, or none."""
        uri = arguments[_URI_ARGUMENT] if len(arguments) > _URI_ARGUMENT else named.get("uri")
        if not self._is_owned(database, uri):
            return None
        if self.has_failed:
            return self._refusal(native, "has failed in this process")
        try:
            from hermes_actor.dbapi import connect
        except Exception as error:
            text = f"cannot be imported in this environment ({error})"
            refusal = self._refusal(native, text)
            if refusal is None:
                # For all stores, or for none: it may be there again with the next one.
                self.has_failed = True
                advice = self._settings["advice"]
                _say(f"{text}; the program opens its databases by itself. {advice}")
            return refusal

        def open_store(*arguments: Any, **named: Any) -> Any:
            conn = connect(*arguments, **named)
            # A build that was installed since may lack it.
            getattr(conn, "expect_migration", lambda: None)()
            return conn

        return open_store

    def _refusal(self, native: Any, why: str) -> Callable[..., Any] | None:
        """Return a ``connect`` that refuses, if the program must not open its stores by itself."""
        if not self._is_required():
            return None

        def refuse(*_: Any, **__: Any) -> Any:
            raise native.OperationalError(
                f"unable to open database file: hermes-actor {why}, and attach.required is set in"
                " config.yaml"
            )

        return refuse

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
        try:
            if sys.argv[:1] == ["-m"] and code is not None:
                self._finder.bind(sys.modules["__main__"], code)
        except Exception as error:
            self._finder.give_up(f"{name} is not attached", error)
        return code

    def exec_module(self, module: Any) -> None:
        """Run the code of *module*, bound; on any fault of ours, as if we were not there."""
        code = None
        try:
            code = self._bound_code(module)
        except Exception as error:
            self._finder.give_up(f"{module.__name__} is not attached", error)
        if code is None:
            self._loader.exec_module(module)
        else:
            exec(code, module.__dict__)
        try:
            if not self._finder.has_failed:
                self._finder.replace(module)
        except Exception as error:
            self._finder.give_up(f"{module.__name__} is not replaced", error)

    def _bound_code(self, module: Any) -> CodeType | None:
        module.__spec__.loader = module.__loader__ = self._loader
        try:
            code: CodeType | None = self._loader.get_code(module.__name__)
        except (ImportError, OSError, SyntaxError):
            return None  # the loader says it once more
        if code is not None:
            self._finder.bind(module, code)
        return code


def _uses_bound(code: CodeType) -> bool:
    """Return True if *code*, or a function in it, has a name that we bind."""
    kind, has_none = type(code), _WANTED.isdisjoint
    found = [code]
    for one in found:  # all names of a program are looked at: one call of C for each function
        if not has_none(one.co_names):
            return True
        found += [inner for inner in one.co_consts if type(inner) is kind]
    return False
