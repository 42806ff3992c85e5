"""The app and the database that a command uses."""

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

import dutiful
from dutiful.app import Dutiful
from dutiful.client.client import Client
from dutiful.core.errors import UsageError
from dutiful.core.principal import Origin, Principal
from dutiful.settings import named_app
from dutiful.store import Store

if TYPE_CHECKING:  # a worker does without it, and would hold it for as long as it runs
    from dutiful.operator import Operator

T = TypeVar("T")
SQLITE = "sqlite:///"
OURS = f"{Path(dutiful.__file__).parent}{os.sep}"


@dataclass(frozen=True, slots=True)
class Target:
    """--app and --database-url; the environment and the settings file provide the rest."""

    app_name: str | None = None
    database_url: str | None = None

    def app(self, name: str | None = None) -> Dutiful:
        """The user's app; `name` wins over --app, and --app over the environment and the file."""
        chosen = name or self.app_name or named_app()
        if not chosen:
            raise UsageError(
                "this needs your app: give --app module:name (as in --app jobs:app), set DUTIFUL_APP, or write "
                'app = "jobs:app" in dutiful.toml'
            )
        app = import_object(chosen, "app", Dutiful)
        app.configure(database_url=self.database_url)
        return app

    @property
    def bare(self) -> bool:
        """Whether no app of the user's is named."""
        return self.app_name is None and (self.database_url is not None or not named_app())

    def any_app(self) -> Dutiful:
        """The user's app if one is named, otherwise an app without kinds, which is enough for existing jobs."""
        if self.bare:
            # Without a profile, because only the user's app may know it, and no profile sets the database.
            return Dutiful(self.database_url, profile="")
        return self.app()


def target(ctx: typer.Context) -> Target:
    return ctx.find_object(Target) or Target()


def run(ctx: typer.Context, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """Runs `work` with an open client on the chosen database, which has to exist."""
    return _open(target(ctx).any_app(), work)


def operate(
    ctx: typer.Context,
    work: Callable[["Operator"], Coroutine[Any, Any, T]],
    tenant: str | None = None,
    *,
    makes_file: bool = False,
) -> T:
    """Runs `work` as the user of this process, limited to a `tenant` if one is given.

    `makes_file` creates a missing SQLite file, because the command may be the first one in a new folder.
    """
    from dutiful.operator import Operator

    app = target(ctx).any_app()
    user, rules, policies = this_user(tenant), app.alert_rules(), app.breaker_policies()
    return _open(app, lambda client: work(Operator(client, user, app.kinds, rules, policies)), makes_file)


def this_user(tenant: str | None = None) -> Principal:
    from dutiful.operator import os_user

    return Principal(name=os_user(), tenant=tenant, origin=Origin.CLI)


def _open(app: Dutiful, work: Callable[[Client], Coroutine[Any, Any, T]], makes_file: bool = False) -> T:
    async def session() -> T:
        if not makes_file:
            await app.make_store().check_made()  # a mistyped path must not create a database
        async with app.opened() as client:
            return await work(client)

    return asyncio.run(session())


def sqlite_file(store: Store) -> Path | None:
    """The file of a SQLite store, None of another."""
    return Path(store.url.removeprefix(SQLITE)) if store.url.startswith(SQLITE) else None


def import_object(name: str, what: str, wanted: type[T]) -> T:
    """The object `module:name`, an app or channels; the module may be in the current directory."""
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        raise UsageError(f"{what} {name!r}: name the module, not its file, as in myproject.jobs:{what}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"{what} {name!r}: there is no module {error.name!r} in {here} or on the path") from error
        raise _broken(what, name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(what, name, error) from error
    found: Any = module
    for part in (attribute or what).split("."):
        found = getattr(found, part, None)
    if not isinstance(found, wanted):
        there = [f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, wanted)]
        hint = f"; it has {', '.join(there)}" if there else f"; make one with `{what} = {wanted.__name__}()`"
        shown = "a Dutiful app" if wanted is Dutiful else f"an object of the class {wanted.__name__}"
        raise UsageError(f"{what} {name!r}: {attribute or what} in module {module_name} is not {shown}{hint}")
    return found


def _broken(what: str, name: str, error: BaseException) -> UsageError:
    # Not of our own, which declarations call: the line to change is the user's.
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(("<frozen", OURS))]
    last = frames[-1] if frames else None
    where = f" ({os.path.relpath(last.filename)}, line {last.lineno})" if last else ""
    return UsageError(f"{what} {name!r} cannot be imported: {type(error).__name__}: {error}{where}")
